package share

import (
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wire"
)

// processFlags returns what this process says of itself; sure is false where the driver did not answer.
func processFlags(dev *cu.Device) (flags wire.ProcessFlags, sure bool) {
	if dev == nil {
		return 0, true // without a driver there is no work
	}
	v, err := dev.Attribute(cu.AttributeMPSEnabled)
	if err != nil || v != 0 {
		return wire.ProcessMPS, err == nil
	}
	return 0, true
}

// knownFlags is processFlags, which asks the driver once: to ask takes a good part of the time until
// an offer is sent. A process runs under MPS from its first call of the driver on, or never.
func (s *Server) knownFlags(dev *cu.Device) wire.ProcessFlags {
	if known, ok := s.flags.Load(dev); ok {
		return known.(wire.ProcessFlags)
	}
	flags, sure := processFlags(dev)
	if sure {
		s.flags.Store(dev, flags)
	}
	return flags
}
