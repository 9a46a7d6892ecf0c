package cu

import (
	"encoding/binary"
	"unsafe"
)

// The driver gets code without its length, so it reads past the end of a damaged
// image.

// loadable returns a copy of image as the driver wants it: PTX ends in a zero. It
// refuses an image that was cut off.
func loadable(op string, image []byte) (unsafe.Pointer, error) {
	if !isWhole(image) {
		return nil, &Error{Op: op, Result: ErrInvalidImage, Detail: "the image is shorter than its headers say, or has the address of other memory in it"}
	}
	code := make([]byte, len(image)+1)
	copy(code, image)
	return unsafe.Pointer(&code[0]), nil
}

// The first bytes of images other than PTX, as little-endian numbers.
const (
	elfMagic     = 0x464c457f // cubin
	fatbinMagic  = 0xba55ed50
	wrapperMagic = 0x466243b1 // a C struct with the address of a fatbin
)

// isWhole reports whether image is as long as its headers say.
func isWhole(image []byte) bool {
	le := binary.LittleEndian
	if len(image) < 4 {
		return true
	}
	switch le.Uint32(image) {
	case elfMagic:
		return isWholeELF(image)
	case fatbinMagic:
		if len(image) < 16 {
			return false
		}
		size, header := le.Uint64(image[8:]), uint64(le.Uint16(image[6:]))
		return size <= uint64(len(image)) && header+size <= uint64(len(image))
	case wrapperMagic:
		return false
	}
	return true
}

// isWholeELF reports whether a 64-bit ELF file holds its program headers, its
// section headers and their sections.
func isWholeELF(image []byte) bool {
	le, size := binary.LittleEndian, uint64(len(image))
	if size < 64 {
		return false
	}
	phoff, phsize, phnum := le.Uint64(image[32:]), uint64(le.Uint16(image[54:])), uint64(le.Uint16(image[56:]))
	shoff, shsize, shnum := le.Uint64(image[40:]), uint64(le.Uint16(image[58:])), uint64(le.Uint16(image[60:]))
	if phoff > size || phsize*phnum > size-phoff || shoff > size || shsize*shnum > size-shoff || shnum > 0 && shsize < 64 {
		return false
	}
	for i := range shnum {
		s := image[shoff+i*shsize:]
		const noBits = 8
		if at, n := le.Uint64(s[24:]), le.Uint64(s[32:]); le.Uint32(s[4:]) != noBits && (at > size || n > size-at) {
			return false
		}
	}
	return true
}
