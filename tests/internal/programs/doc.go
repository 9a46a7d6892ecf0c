// Package programs starts gpufd's programs for tests, and looks at what they say and leave behind.
package programs
