// Package fdstore is a process that holds file descriptors for a keeper, so that the
// keeper may die at any moment (kill -9) and lose nothing: its successor finds the
// descriptors, and the manifest that says what they are. The store decides nothing. It
// knows no CUDA, maps no memory and reads no manifest.
//
// It holds sets of 1 to [MaxSet] descriptors, each under a 64-bit id that the keeper
// chose, and one manifest: a memfd that nobody can change any more (sealed,
// fcntl(2)). A set counts when all of it has come, and a manifest replaces the earlier
// one in one step. So the keeper that follows one that died finds the old state or the
// new one, and perhaps sets that no manifest names.
//
//	c, err := fdstore.Spawn(ctx, path, "/proc/self/exe", "store", path) // calls Run
//	err = c.Hold(ctx, 7, files)          // the store has its own descriptors now
//	err = c.Swap(ctx, manifest)          // names set 7
//	// … kill -9 …
//	c, err = fdstore.Dial(ctx, path)
//	manifest, err = c.Manifest(ctx)
//	files, err = c.Fetch(ctx, 7)
//
// # One keeper at a time
//
// The first connection has the store until it ends. Another one is refused
// ([ErrBusy], with the pid of the keeper that has it) if the first does not end within a
// fifth of a second: a keeper that was killed a moment ago may still be dying. Only the
// store's own user may connect (sock.Policy). A set that was half sent when its keeper died
// is closed.
//
// # Protocol
//
// Requests and answers are records of a SOCK_SEQPACKET socket (package sock). The keeper
// sends a request and waits for its answer; each request has one. A record begins with 32
// bytes, little-endian:
//
//	offset  size
//	     0     4  magic "GFDS"
//	     4     2  version, 1
//	     6     2  operation; in an answer with bit 15 set
//	     8     4  number of the request, which the answer repeats; not 0
//	    12     4  code: 0 in a request and in an answer that is no refusal
//	    16     4  count
//	    20     4  from
//	    24     8  id
//
// A refusal has a code and a text (UTF-8) after the header, and nothing has changed in
// the store. Fields that an operation does not use are 0 in answers and are not looked at
// in requests.
//
//	1 STATUS    answer: pid, sets, descriptors, how many more fit, bytes of the
//	            manifest (all bits set if there is none), and since when the store runs
//	            (nanoseconds since 1970), 8 bytes each. id: the store's identity, a random
//	            number that is not 0; 0 of stores that are too old to have one
//	2 HOLD      a part of a set: id; count, the descriptors of the whole set; from, the
//	            index of the first one in this record; 1 to 64 descriptors. Parts come in
//	            order. Any other request in between discards those that have come.
//	3 SWAP      one memfd, sealed with F_SEAL_WRITE, _SHRINK, _GROW and _SEAL: the manifest
//	            from now on; the earlier one is closed
//	4 DROP      count ids of 8 bytes each, up to 4,096: their sets are closed, all or none
//	5 LIST      answer: the sets with an id from id on, ascending, up to 4,096: 8 bytes
//	            id and 4 bytes number of descriptors each. count: how many such sets
//	            there are, also those that did not fit
//	6 FETCH     answer: up to 64 descriptors of set id, from index from on; count: those
//	            of the whole set
//	7 MANIFEST  answer: the memfd with count 1, or none with count 0
//	8 EXIT      the store closes all that it holds and ends, after the answer. The
//	            connection ends when the socket's path is free.
//
// Codes: 1 malformed (or not understood), 2 no such set, 3 the id has a set, 4 not a
// manifest, 5 no room for more descriptors, 6 another keeper has the store (number 0; the
// connection ends), 7 out of order (a part of a set that does not follow the one before).
//
// # What bites
//
//   - A call whose context ends between request and answer has an unknown outcome: ask
//     (List, Manifest).
//   - Closing a descriptor may take long: 740 µs for memory of a GPU, for ever for some
//     others. So Drop returns before the store has closed anything. A descriptor counts as
//     held until it is closed.
//   - Service managers kill what a service started along with it. Under systemd run the
//     store as a service of its own, or the keeper with KillMode=process. The store ends
//     on SIGTERM and SIGINT, and then what it held is gone. SIGHUP does nothing.
//   - A store that is killed, by SIGKILL or by the kernel's OOM killer, loses what it
//     holds. There is only one copy.
//
// systemd's own store (sd_notify(3), FDSTORE=1) is not used: it exists under systemd
// alone, gives descriptors back only when the service starts again, closes those that
// report a hangup, and cannot replace a manifest in one step.
package fdstore
