// Package corpus runs what nvcc makes of CUDA C of our own, optimised and for
// debugging, on either driver. What an H200 made of it is in testdata, and the
// software driver has to make the same.
package corpus
