// Package python runs the tests that are written in Python.
package python
