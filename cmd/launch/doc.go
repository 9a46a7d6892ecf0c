// Launch runs a kernel of PTX, a cubin or a fatbin, on a GPU or on the software
// driver, with arguments from the command line and buffers from and to files.
//
//	launch --builtin vector --kernel saxpy --grid 4 --block 256 f32:2 in:x inout:y:out u64:1000
//	launch --ptx my.ptx --list
//
// It says how long a launch took. Run it with -h for its flags, its arguments and
// its exit codes.
package main
