"""Readers of files of structures, and the public data sets that are downloaded."""
