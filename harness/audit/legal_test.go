package audit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"conform/harness/ledger"
)

// shape of a random legal history.
type shape struct {
	txns    bool // all messages are of transactions
	expired bool // the start of the logs has moved, and expiry is allowed
	killed  bool // the first producer was killed as planned
}

func anyShape(r *rand.Rand) shape {
	return shape{txns: r.IntN(3) == 0, expired: r.IntN(4) == 0, killed: r.IntN(4) == 0}
}

// legal returns a random history in which no promise is broken and all evidence is there: sends of
// several producers confirmed, refused or in doubt, in doubt ones stored or not, keys overtaking each
// other, holes in the log, positions read twice.
func legal(r *rand.Rand, s shape) (ledger.Header, []journal) {
	h := baseHeader()
	h.Seed = r.Uint64()
	h.Destinations[0].Partitions = 1 + r.IntN(3)
	h.Workload.Keys = uint32(1 + r.IntN(12))
	h.Promise.MaxUnavailable, h.Promise.MaxRTO = 10*time.Second, time.Hour
	h.Evidence = ledger.Evidence{Bites: []string{"cut"}, Ends: []string{"producer-1"}}
	if s.expired {
		h.Promise.Rules = map[string]ledger.Rule{"lost/expired": {Allowed: true}}
	}
	type record struct {
		id     ledger.MessageID
		hidden bool // from the committed view
	}
	var (
		js    []journal
		logs  = make([][]record, h.Destinations[0].Partitions)
		lanes [][]record // by stream, in send order
		sends []int64    // when the strike may be
	)
	streams := 1 + r.IntN(3)
	for st := range streams {
		stream := uint32(st + 1)
		name := fmt.Sprintf("producer-%d", stream)
		j := journal{Segment: ledger.Segment{Name: name, Role: "producer", Worker: name}}
		n := 12 + r.IntN(50)
		var lane []record
		at := int64(1 + r.IntN(20))
		txnFrom, txnOutcome, txnShown := 0, ledger.OK, true
		invoked := 0
		for seq := range n {
			at += 1 + r.Int64N(10)*ms
			if seq >= invoked {
				invoked = min(n, seq+1+r.IntN(5))
				j.Events = append(j.Events, ledger.Event{Kind: ledger.Invoke, Stream: stream, Seq: uint64(seq), To: uint64(invoked), At: at})
			}
			if s.txns && seq == txnFrom {
				txnOutcome = []ledger.Outcome{ledger.OK, ledger.OK, ledger.Failed, ledger.InDoubt}[r.IntN(4)]
				txnShown = txnOutcome == ledger.OK || txnOutcome == ledger.InDoubt && r.IntN(2) == 0
			}
			rec := record{id: ledger.MessageID{Stream: stream, Seq: uint64(seq)}, hidden: s.txns && !txnShown}
			done := ledger.Event{Kind: ledger.Complete, Stream: stream, Seq: uint64(seq), Sent: at + 1, At: at + 1 + r.Int64N(20)*ms, Pos: ledger.Position{Offset: -1}}
			sends = append(sends, done.At)
			stored := r.IntN(2) == 0
			switch p := r.IntN(100); {
			case p < 70 || seq == 0 || s.txns && p < 95:
				done.Outcome, stored = ledger.OK, true
				if r.IntN(2) == 0 {
					done.Claim = ledger.ClaimSent
				}
				j.Events = append(j.Events, done)
			case p < 80:
				if stored && !s.expired && r.IntN(2) == 0 {
					j.Events = append(j.Events, ledger.Event{Kind: ledger.Claimed, Stream: stream, Seq: uint64(seq), Claim: ledger.ClaimSent, At: at + 2})
				}
				j.Events = append(j.Events, done)
			case p < 90:
				done.Outcome, stored = ledger.Failed, false
				j.Events = append(j.Events, done)
			}
			if stored {
				lane = append(lane, rec)
			}
			if s.txns && (seq == n-1 || seq-txnFrom == 3) {
				j.Events = append(j.Events, ledger.Event{Kind: ledger.TxnEnd, Stream: stream, Seq: uint64(txnFrom), To: uint64(seq) + 1, Outcome: txnOutcome, Sent: at + 5, At: at + 6})
				txnFrom = seq + 1
			}
		}
		// Records of different keys may change places.
		key := func(x record) uint32 { return ledger.KeyOf(h.Seed, x.id, h.Workload.Keys) }
		for i := 1; i < len(lane); i++ {
			if r.IntN(8) == 0 && key(lane[i]) != key(lane[i-1]) {
				lane[i], lane[i-1] = lane[i-1], lane[i]
			}
		}
		lanes = append(lanes, lane)
		if !s.killed || stream != 1 {
			j.Events = append(j.Events, ledger.Event{Kind: ledger.SegmentEnd})
		}
		js = append(js, j)
	}
	for slices.ContainsFunc(lanes, func(l []record) bool { return len(l) > 0 }) {
		i := r.IntN(len(lanes))
		if len(lanes[i]) == 0 {
			continue
		}
		rec := lanes[i][0]
		lanes[i] = lanes[i][1:]
		p := ledger.PartitionOf(ledger.KeyOf(h.Seed, rec.id, h.Workload.Keys), h.Destinations[0].Partitions)
		for r.IntN(6) == 0 {
			logs[p] = append(logs[p], record{}) // a hole: a control record
		}
		logs[p] = append(logs[p], rec)
	}

	rd := journal{Segment: ledger.Segment{Name: "reader", Role: "reader"}}
	places := map[ledger.MessageID]ledger.Position{}
	counted := r.IntN(2) == 0
	for view := ledger.ViewRaw; view <= ledger.ViewCommitted; view++ {
		rr := rand.New(rand.NewPCG(h.Seed, 1)) // the same starts in both views
		for p, log := range logs {
			low := 0
			if s.expired && len(log) > 0 {
				low = rr.IntN(len(log))
			}
			count := int64(0)
			for off, rec := range log {
				pos := ledger.Position{Partition: int32(p), Offset: int64(off)}
				if rec.id.Stream != 0 {
					places[rec.id] = pos
				}
				if off < low || rec.id.Stream == 0 || rec.hidden && view == ledger.ViewCommitted {
					continue
				}
				payload := ledger.AppendPayload(nil, h.Seed, h.Tag(), rec.id, 0, h.Workload.PayloadSize)
				e := ledger.StoredRecord(h.Tag(), view, pos, []byte(ledger.KeyName(ledger.KeyOf(h.Seed, rec.id, h.Workload.Keys))), payload, 1e12)
				rd.Events = append(rd.Events, e)
				count++
				if r.IntN(20) == 0 {
					rd.Events = append(rd.Events, e) // read twice
				}
			}
			if !counted {
				count = -1
			}
			end := int64(len(log))
			rd.Events = append(rd.Events, ledger.Event{Kind: ledger.StoreEnd, View: view, Pos: ledger.Position{Partition: int32(p), Offset: end}, N: end, Low: int64(low), Count: count, At: 1e12})
		}
	}
	rd.Events = append(rd.Events, ledger.Event{Kind: ledger.SegmentEnd})
	for i := range js {
		for k := range js[i].Events {
			if e := &js[i].Events[k]; e.Kind == ledger.Complete && e.Outcome == ledger.OK {
				e.Pos = places[e.ID()]
			}
		}
	}

	slices.Sort(sends)
	strike, heal := sends[len(sends)/3], sends[2*len(sends)/3]
	eng := journal{Segment: ledger.Segment{Name: "engine", Role: "engine"}, Events: []ledger.Event{
		{Kind: ledger.Phase, Text: "load", At: 0},
		{Kind: ledger.Inject, Text: "cut", Detail: "link-cut on kafka-1", At: strike},
		{Kind: ledger.Bite, Text: "cut", Outcome: ledger.OK, Detail: "3 packets dropped", N: 3, At: strike + 1},
		{Kind: ledger.Heal, Text: "cut", Outcome: ledger.OK, At: heal},
		{Kind: ledger.Step, Text: "healed", Outcome: ledger.OK, At: heal},
		{Kind: ledger.Phase, Text: "heal", At: 1e11},
	}}
	for st := range streams {
		how := "exited"
		if s.killed && st == 0 {
			how = "killed at crash point after-send"
		}
		eng.Events = append(eng.Events, ledger.Event{Kind: ledger.WorkerEnd, Text: fmt.Sprintf("producer-%d", st+1), Outcome: ledger.OK, Detail: how, At: 1e11})
	}
	eng.Events = append(eng.Events, ledger.Event{Kind: ledger.Quiet, Outcome: ledger.OK, At: 5e11})
	js = append(js, eng, rd)
	rest(js, len(js)-2, len(js)-1)
	js[len(js)-2].Events = append(js[len(js)-2].Events, ledger.Event{Kind: ledger.SegmentEnd})
	return h, js
}

// killer of a mutation: the anomaly that must be found, or the proof that must fail.
var killers = map[string]string{
	"lose-confirmed":    Lost,
	"lose-claimed":      Lost,
	"duplicate-stored":  DuplicateStore,
	"swap-of-key":       ReorderedStore,
	"alter-digest":      Corrupted,
	"unreadable":        Corrupted,
	"foreign":           Misrouted,
	"move-partition":    Misrouted,
	"alter-key":         Misrouted,
	"phantom":           Phantom,
	"resurrect":         Resurrected,
	"two-values":        Conflict,
	"hide-committed":    Conflict,
	"abort-visible":     AbortedRead,
	"tear-transaction":  TornTxn,
	"read-early":        EarlyRead,
	"long-silence":      Unavailable,
	"claim-refused":     Lost,
	"claim-unsent":      Lost,
	"confirm-unsent":    "proof consistency",
	"contradict":        "proof consistency",
	"drop-sends":        "proof consistency",
	"drop-store-end":    "proof final read",
	"move-end":          "proof final read",
	"miscount":          "proof final read",
	"drop-bite":         "proof bite of cut",
	"drop-inject":       "proof bite of cut",
	"unproven-strike":   "proof bite of cut",
	"drop-heal":         "proof heals",
	"failed-heal":       "proof heals",
	"drop-quiet":        "proof quiescence",
	"still-moving":      "proof quiescence",
	"drop-worker-end":   "proof end of producer-1",
	"drop-end-position": "proof final read",
	"short-read":        "proof final read",
	"cut-segment":       "proof ledger",
	"worker-died":       "proof workers",
	"node-died":         "proof nodes",
	"unreached-step":    "proof plan",
	"drop-segment-end":  "proof segments",
	"unknown-check":     "proof checks",
	"truncate":          "proof segments",
	"flip-bit":          "proof ledger",
	"drop-frame":        "proof ledger",

	"undeliver":         Undelivered,
	"skip-record":       CommitGap,
	"commit-ahead":      CommitAhead,
	"rewind":            CommitRewind,
	"lose-position":     CommitRewind,
	"two-owners":        DoubleOwner,
	"redeliver-settled": RedeliveredAfterSettle,
	"deliver-twice":     DuplicateDelivery,
	"swap-delivered":    ReorderedDelivery,
	"early":             Early,
	"late":              Late,
	"outlive":           ExpiredDelivered,
	"lose-letter":       DeadLetterLost,
	"ack-early":         MissingEffect,
	"forget-unsettled":  MissingEffect,
	"swap-queued":       ReorderedDelivery,
	"lose-rejected":     DeadLetterLost,
	"strip-death":       DeadLetterWrong,
	"misdirect-death":   DeadLetterWrong,
	"uncount-death":     DeadLetterWrong,
	"rush-death":        DeadLetterWrong,
	"hold-up":           Stall,
	"bare-letter":       DeadLetterWrong,
	"leak-secret":       DeadLetterWrong,
	"needless-letter":   DeadLetterWrong,
	"lose-effect":       MissingEffect,
	"needless-letters":  DeadLetterWrong,
	"letter-for-effect": DeadLetterWrong,
	"double-effect":     DuplicateEffect,
	"resend-anew":       DuplicateEffect,
	"old-state":         StaleEffect,
	"made-up-effect":    PhantomEffect,
	"not-published":     Unpublished,
	"roll-back":         PublishedUncommitted,
	"lose-order":        Lost,
	"lose-orders":       Lost,
	"tear-order":        TornTxn,
	"unmark-row":        "proof consistency",
	"stop-draining":     Stuck,
	"hang-caller":       Stall,
	"slow-recovery":     RTO,
	"drop-snapshot-end": "proof snapshot",
	"miscount-rows":     "proof snapshot",
	"read-twice":        "proof snapshot",
	"empty-states":      MissingEffect,
	"future-state":      PhantomEffect,
	"alter-row-key":     PhantomEffect,
	"row-of-nobody":     "proof consistency",
	"deliver-unsent":    "proof consistency",
	"other-space":       "proof snapshot",
	"early-snapshot":    "proof snapshot",
	"drop-group-end":    "proof groups",
}

// killedBy lists what an audit has against a ledger.
func killedBy(v Verdict) map[string]bool {
	out := map[string]bool{}
	for _, f := range v.Findings {
		if f.Forbidden {
			out[f.Anomaly] = true
		}
	}
	for _, p := range v.Proofs {
		if !p.OK {
			out["proof "+p.Name] = true
		}
	}
	return out
}

// clone copies a ledger so that it can be mutated.
func clone(js []journal) []journal {
	out := make([]journal, len(js))
	for i, j := range js {
		out[i] = j.Clone()
	}
	return out
}
