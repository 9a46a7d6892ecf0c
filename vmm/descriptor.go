package vmm

import "github.com/gpufd/gpufd/gpumem"

// A Descriptor is what an importer has to know about a buffer: see package gpumem.
type Descriptor = gpumem.Descriptor

// A DescriptorError says what is wrong with another process's description of memory.
type DescriptorError = gpumem.DescriptorError

// MaxChunks limits the chunks of one buffer: each costs a descriptor in the exporter and an import in every peer.
const MaxChunks = gpumem.MaxChunks
