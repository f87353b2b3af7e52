"""Tools that a model may call: what they are, how each family of models writes a call, and how it is read
back from text. Pure text: it knows no tokens, no engine and no HTTP.

    messages     a message of a chat in OpenAI's JSON, with the calls that were made in it
    definitions  what a client offers, and what it wants called
    formats      how a call is written, by family; thinking: how thinking is marked
    grammars     the grammar of calls; rules: of one call; schemas: what is followed of a function's schema
    parser       from text, as it comes, to calls; cursor: words and JSON in pieces; pythonic: Python's calls
    channels     the same for gpt-oss, whose answers are messages in channels
    arguments    values without quotes, as the JSON that a schema says
    answer       from text to thinking, content and calls: events
    prompt       tools as a message, for a template that knows none
"""
