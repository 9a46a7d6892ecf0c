package tests

import (
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

var plants = map[string]func(*stage, *vmm.Buffer, share.Event){}
