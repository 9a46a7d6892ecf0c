#include "go_asm.h"
#include "textflag.h"

// crossing is a C function on the system stack: int crossing(frame *).
// It sets the context if there is one, lays out the stack arguments, fills the
// argument registers, calls, and stores the result; then it pops what the call
// pushed, if that is asked for and the call succeeded. R19 and R29 are C's to
// keep, so the frame survives both calls in R19.
TEXT crossing<>(SB), NOSPLIT|NOFRAME, $0
	SUB  $32, RSP
	STP  (R29, R30), (RSP)
	MOVD R19, 16(RSP)
	MOVD RSP, R29
	MOVD R0, R19

	MOVD  frame_bind(R19), R9
	CBZ   R9, bound
	MOVD  frame_ctx(R19), R0
	BL    (R9)
	MOVW  R0, frame_bound(R19)
	CBNZW R0, done

bound:
	MOVD frame_nstack(R19), R10
	CBZ  R10, registers
	ADD  $1, R10, R11
	AND  $~1, R11, R11
	LSL  $3, R11, R11
	MOVD RSP, R12
	SUB  R11, R12, R12
	MOVD R12, RSP
	MOVD frame_stack(R19), R13

copy:
	MOVD.P 8(R13), R14
	MOVD.P R14, 8(R12)
	SUB    $1, R10, R10
	CBNZ   R10, copy

registers:
	FMOVD (frame_float+0)(R19), F0
	FMOVD (frame_float+8)(R19), F1
	MOVD  (frame_word+0)(R19), R0
	MOVD  (frame_word+8)(R19), R1
	MOVD  (frame_word+16)(R19), R2
	MOVD  (frame_word+24)(R19), R3
	MOVD  (frame_word+32)(R19), R4
	MOVD  (frame_word+40)(R19), R5
	MOVD  (frame_word+48)(R19), R6
	MOVD  (frame_word+56)(R19), R7
	MOVD  frame_fn(R19), R9
	BL    (R9)
	MOVD  R0, frame_result(R19)
	CBNZW R0, done
	MOVD  frame_after(R19), R9
	CBZ   R9, done
	ADD   $frame_popped, R19, R0
	BL    (R9)

done:
	MOVD R29, RSP
	MOVD 16(RSP), R19
	LDP  (RSP), (R29, R30)
	ADD  $32, RSP
	MOVD $0, R0
	RET

// The address of crossing as C sees it.
DATA ·crossingPC(SB)/8, $crossing<>(SB)
GLOBL ·crossingPC(SB), NOPTR|RODATA, $8
