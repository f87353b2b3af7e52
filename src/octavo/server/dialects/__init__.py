"""Other APIs: a request translated into a `ChatBody`, an answer out of a `ChatRun`. No engine here."""
