"""Conversations that are kept between requests: chat sessions and stored responses."""
