"""The Python API: the names that programs import from `octavo`. Names, arguments and defaults are vLLM's
where vLLM has them; the others are Octavo's own.

    prompts, SamplingParams --> LLM        the caller runs the engine's steps  --> RequestOutput
                            --> AsyncLLM   a thread runs them
"""
