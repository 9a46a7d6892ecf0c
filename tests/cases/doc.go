// Package cases does what ordinary programs do that once lost data, contexts or time, on both drivers.
//
// Most of these cases are tested where the code is:
//
//	case          tests
//	unmapunder    TestFault97_UnmapUnder here; raw: TestC40_UnmapUnderWork of tests/conformance
//	closeunder    TestFault97_CloseUnder and TestFault97_CloseUnderCopies here
//	cancels       TestCancels here; contexts that end: TestFault64_Cancel… of share
//	newest        TestFault98_Newest here; a model of it: TestLatest… of channel
//	stale         TestStale here
//	stackptr      TestStackPtr here; without a driver: TestAddressStays of cu/sys
//	doneContext   TestEndedContextsAreLookedAtFirst of tests/api
//	followcancel  TestFollowsContextEndsTheAttachments of share
//	chan2         TestWriterHearsThatItsServerHasEnded and TestAfterPassedComesTheNewest of channel
//	keeper2       TestWantOfParts and TestNameWithPartsIsNotWaitedFor of keeper/server, TestPutThatFails of keeper
package cases
