"""The Python API: what programs import from `octavo`. Its names, arguments and defaults are vLLM's where vLLM
has them; what else there is, is Octavo's own.

    prompts, SamplingParams --> LLM        the caller turns the engine  --> RequestOutput
                            --> AsyncLLM   a thread turns it
"""
