#include "go_asm.h"
#include "textflag.h"

// crossing is a C function on the system stack: int crossing(frame *). It lays
// out the stack arguments, fills the argument registers, sets the context if
// there is one, calls, and returns the result; before that it pops what the call
// pushed, if that is asked for and the call succeeded. R19, R20 and R29 are C's
// to keep. Once something was called the frame is not looked at: what is needed
// is in R19 and R20, or saved above R29:
//
//	16(R29)  R19 and R20 of the caller
//	32(R29)  where cuCtxPopCurrent_v2 stores the context
//	48(R29)  floats, 64(R29) words, while the context is set
TEXT crossing<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $128, RSP
	STP  (R29, R30), (RSP)
	STP  (R19, R20), 16(RSP)
	MOVD RSP, R29
	MOVD R0, R9
	MOVD frame_fn(R9), R19
	MOVD frame_after(R9), R20

	MOVD (frame_stack+8)(R9), R10
	CBZ  R10, registers
	ADD  $1, R10, R11
	AND  $~1, R11, R11
	LSL  $3, R11, R11
	MOVD RSP, R12
	SUB  R11, R12, R12
	MOVD R12, RSP
	MOVD frame_stack(R9), R13

copy:
	MOVD.P 8(R13), R14
	MOVD.P R14, 8(R12)
	SUB    $1, R10, R10
	CBNZ   R10, copy

registers:
	FMOVD (frame_float+0)(R9), F0
	FMOVD (frame_float+8)(R9), F1
	MOVD  frame_word(R9), R10
	LDP   0(R10), (R0, R1)
	LDP   16(R10), (R2, R3)
	LDP   32(R10), (R4, R5)
	LDP   48(R10), (R6, R7)
	MOVD  frame_bind(R9), R11
	CBZ   R11, call

	FMOVD F0, 48(R29)
	FMOVD F1, 56(R29)
	STP   (R0, R1), 64(R29)
	STP   (R2, R3), 80(R29)
	STP   (R4, R5), 96(R29)
	STP   (R6, R7), 112(R29)
	MOVD  frame_ctx(R9), R0
	BL    (R11)
	CBNZW R0, unbound
	FMOVD 48(R29), F0
	FMOVD 56(R29), F1
	LDP   64(R29), (R0, R1)
	LDP   80(R29), (R2, R3)
	LDP   96(R29), (R4, R5)
	LDP   112(R29), (R6, R7)

call:
	BL   (R19)
	CBNZ R20, pop

done:
	MOVD R29, RSP
	LDP  16(RSP), (R19, R20)
	LDP  (RSP), (R29, R30)
	ADD  $128, RSP
	RET

pop:
	CBNZW R0, done
	ADD   $32, R29, R0
	BL    (R20)
	MOVD  $0, R0
	B     done

unbound:
	ORR $const_bindFailed, R0, R0
	B   done

// The address of crossing as C sees it.
DATA ·crossingPC(SB)/8, $crossing<>(SB)
GLOBL ·crossingPC(SB), NOPTR|RODATA, $8
