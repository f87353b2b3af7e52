"""Between text and token ids: tokenizer, incremental detokenizer, stop strings, chat templates."""
