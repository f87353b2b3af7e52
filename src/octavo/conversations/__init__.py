"""Conversations kept between requests: chat sessions and stored responses."""
