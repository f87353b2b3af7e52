"""Guesses at what comes next: drafters (tokens in, at most k out) and how many guesses pay."""
