"""Other APIs: each translates its request into a `ChatBody`, and a `ChatRun` into its answer. No engine
here."""
