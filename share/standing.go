package share

import "github.com/gpufd/gpufd/internal/serve"

// A Standing is an offer of descriptors ([Server.OfferFiles]), which lasts until Close.
// The caller owns it. It is safe for concurrent use. The zero Standing is a closed one.
type Standing serve.Standing

func (s *Standing) standing() *serve.Standing { return (*serve.Standing)(s) }

// Leases returns the leases that have not ended, in the order of their numbers, even after
// another offer has taken the name.
func (s *Standing) Leases() []*Lease { return leasesOf(s.standing().Leases()) }

// Supersede tells the consumers that memory of that generation is offered in the place of this,
// under another name ([Attachment.Superseded]). From one instant on nobody gets this memory by
// asking for its name; the leases go on until Close. An offer of [Server.OfferResumed] goes on,
// and tells each consumer that resumes.
func (s *Standing) Supersede(generation uint64) { s.standing().Supersede(generation) }

// Close ends the offer and closes the descriptors. Attached consumers are told
// ([ErrRevoked]) and disconnected; they keep what they have mapped. Close waits for the
// leases to end, so a function of [OnEvent] must not call it. It may be called again and on
// nil, and after the Close of its server. The only error is a [*FenceError] ([WithFence]).
func (s *Standing) Close() error { return s.standing().Close() }

// Replaced returns a channel that is closed when another offer has taken the name, or
// [Standing.Supersede] has taken it away. The leases go on until Close.
func (s *Standing) Replaced() <-chan struct{} { return s.standing().Replaced() }
