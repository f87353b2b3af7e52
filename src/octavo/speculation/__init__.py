"""Speculation: drafters (tokens in, at most k guesses out) and how many guesses are worth verifying."""
