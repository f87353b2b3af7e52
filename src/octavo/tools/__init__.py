"""Tools that a model may call: what they are, how each family of models writes a call, and how it is read
back from text. Pure text: it knows no tokens, no engine and no HTTP.

    definitions  what a client offers, and what it wants called
    formats      how a call is written, by family
    grammars     the grammar of calls, from the schemas of their arguments
    parser       from text, as it comes, to calls; pythonic: the family that writes them in Python
    answer       from text to thinking, content and calls
    prompt       tools as a message, for a template that knows none
"""
