package cu

// WhyNoGPU says why there is no GPU, if that is what err means.
var WhyNoGPU = whyNoGPU

// CaptureLimit is how long a copy waits for a capture that has begun behind it.
var CaptureLimit = &captureLimit

// PendingCalls is how many functions of [Stream.Call] are kept.
func PendingCalls() int {
	hostFuncs.mu.Lock()
	defer hostFuncs.mu.Unlock()
	return len(hostFuncs.f)
}
