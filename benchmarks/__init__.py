"""Speed of LazyNet beside its peers; see compare.py."""
