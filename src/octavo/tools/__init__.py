"""Tools that a model may call: their definitions, each family's format of calls, and the parser of calls.
Pure text: it knows no tokens, no engine and no HTTP.

    messages     a message of a chat in OpenAI's JSON, with its calls
    definitions  a request's tools and tool choice
    formats      the formats of calls, by family; thinking: the formats of thinking
    grammars     the grammar of calls; rules: of one call; schemas: the part of a schema that is followed
    parser       from streamed text to calls; cursor: words and JSON in pieces; pythonic: Python's calls
    channels     the same for gpt-oss, whose answers are messages in channels
    arguments    values without quotes, as JSON by the schema
    answer       from text to thinking, content and calls: events
    prompt       tools as a message, for a template without support of tools
"""
