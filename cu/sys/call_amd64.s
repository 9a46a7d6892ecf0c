#include "go_asm.h"
#include "textflag.h"

// crossing is a C function on the system stack: int crossing(frame *).
// It sets the context if there is one, lays out the stack arguments, fills the
// argument registers, calls, and stores the result; then it pops what the call
// pushed, if that is asked for and the call succeeded. BX and BP are C's to keep,
// so the frame survives both calls in BX.
TEXT crossing<>(SB), NOSPLIT|NOFRAME, $0
	PUSHQ BP
	MOVQ  SP, BP
	PUSHQ BX
	PUSHQ R12 // keeps SP a multiple of 16
	MOVQ  DI, BX

	MOVQ  frame_bind(BX), AX
	TESTQ AX, AX
	JZ    bound
	MOVQ  frame_ctx(BX), DI
	CALL  AX
	MOVL  AX, frame_bound(BX)
	TESTL AX, AX
	JNZ   done

bound:
	MOVQ  frame_nstack(BX), CX
	TESTQ CX, CX
	JZ    registers
	LEAQ  1(CX), AX
	ANDQ  $~1, AX
	SHLQ  $3, AX
	SUBQ  AX, SP
	MOVQ  SP, DI
	MOVQ  frame_stack(BX), SI

copy:
	MOVQ -8(SI)(CX*8), AX
	MOVQ AX, -8(DI)(CX*8)
	DECQ CX
	JNZ  copy

registers:
	MOVSD (frame_float+0)(BX), X0
	MOVSD (frame_float+8)(BX), X1
	MOVQ  (frame_word+0)(BX), DI
	MOVQ  (frame_word+8)(BX), SI
	MOVQ  (frame_word+16)(BX), DX
	MOVQ  (frame_word+24)(BX), CX
	MOVQ  (frame_word+32)(BX), R8
	MOVQ  (frame_word+40)(BX), R9
	MOVQ  frame_fn(BX), AX
	CALL  AX
	MOVQ  AX, frame_result(BX)
	TESTL AX, AX
	JNZ   done
	MOVQ  frame_after(BX), AX
	TESTQ AX, AX
	JZ    done
	LEAQ  frame_popped(BX), DI
	CALL  AX

done:
	LEAQ -16(BP), SP
	POPQ R12
	POPQ BX
	POPQ BP
	XORL AX, AX
	RET

// The address of crossing as C sees it.
DATA ·crossingPC(SB)/8, $crossing<>(SB)
GLOBL ·crossingPC(SB), NOPTR|RODATA, $8
