#include "go_asm.h"
#include "textflag.h"

// crossing is a C function on the system stack: int crossing(frame *). It lays
// out the stack arguments, fills the argument registers, sets the context if
// there is one, calls, and returns the result; before that it pops what the call
// pushed, if that is asked for and the call succeeded. BX, R12 and BP are C's
// to keep. Once something was called the frame is not looked at: what is needed
// is in BX and R12, or saved below BP:
//
//	-16(BP)  BX and R12 of the caller
//	-32(BP)  where cuCtxPopCurrent_v2 stores the context
//	-48(BP)  floats, -96(BP) words, while the context is set
TEXT crossing<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	PUSHQ BX
	PUSHQ R12
	SUBQ  $80, SP // keeps SP a multiple of 16
	MOVQ  DI, R10
	MOVQ  frame_fn(R10), BX
	MOVQ  frame_after(R10), R12

	MOVQ  (frame_stack+8)(R10), CX
	TESTQ CX, CX
	JZ    registers
	LEAQ  1(CX), AX
	ANDQ  $~1, AX
	SHLQ  $3, AX
	SUBQ  AX, SP
	MOVQ  frame_stack(R10), SI

copy:
	MOVQ -8(SI)(CX*8), AX
	MOVQ AX, -8(SP)(CX*8)
	DECQ CX
	JNZ  copy

registers:
	MOVSD (frame_float+0)(R10), X0
	MOVSD (frame_float+8)(R10), X1
	MOVQ  frame_word(R10), R11
	MOVQ  0(R11), DI
	MOVQ  8(R11), SI
	MOVQ  16(R11), DX
	MOVQ  24(R11), CX
	MOVQ  32(R11), R8
	MOVQ  40(R11), R9
	MOVQ  frame_bind(R10), AX
	TESTQ AX, AX
	JZ    call

	MOVQ  DI, -96(BP)
	MOVQ  SI, -88(BP)
	MOVQ  DX, -80(BP)
	MOVQ  CX, -72(BP)
	MOVQ  R8, -64(BP)
	MOVQ  R9, -56(BP)
	MOVSD X0, -48(BP)
	MOVSD X1, -40(BP)
	MOVQ  frame_ctx(R10), DI
	CALL  AX
	TESTL AX, AX
	JNZ   unbound
	MOVQ  -96(BP), DI
	MOVQ  -88(BP), SI
	MOVQ  -80(BP), DX
	MOVQ  -72(BP), CX
	MOVQ  -64(BP), R8
	MOVQ  -56(BP), R9
	MOVSD -48(BP), X0
	MOVSD -40(BP), X1

call:
	CALL  BX
	TESTQ R12, R12
	JNZ   pop

done:
	LEAQ -16(BP), SP
	POPQ R12
	POPQ BX
	POPQ BP
	RET

pop:
	TESTL AX, AX
	JNZ   done
	LEAQ  -32(BP), DI
	CALL  R12
	XORL  AX, AX
	JMP   done

unbound:
	ORL $const_bindFailed, AX
	JMP done

// The address of crossing as C sees it.
DATA ·crossingPC(SB)/8, $crossing<>(SB)
GLOBL ·crossingPC(SB), NOPTR|RODATA, $8
