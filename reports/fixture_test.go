package reports

import (
	"fmt"
	"maps"
	"math"
	"time"

	"conform/harness"
	"conform/harness/audit"
	"conform/harness/ledger"
)

// hostile is what a broker, a key or a payload may hold.
const hostile = `</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&` + "\x1b[31m{{.}}|`]]>"

// started stands for the clock.
var started = time.Date(2026, 5, 4, 9, 30, 0, 0, time.UTC)

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// series draws a load of 24 s with a fault from 6 s to 14 s: during it the arm confirms rate
// messages a second at p50.
func series(rate float64, p50 time.Duration) []audit.Bucket {
	var out []audit.Bucket
	for i := range 24 {
		at := time.Duration(i) * time.Second
		r, p := 2000+60*math.Sin(float64(i)), ms(2.1+0.3*math.Cos(float64(i)*1.7))
		if at >= 6*time.Second && at < 14*time.Second {
			r, p = rate, p50
			if at >= 10*time.Second && rate == 0 {
				r, p = 3400-float64(i)*40, ms(900-float64(i)*12)
			}
		}
		b := audit.Bucket{At: at, Confirmed: int(r), P50: p, Max: 4 * p}
		if b.Confirmed == 0 {
			b.P50, b.Max = 0, 0
		}
		out = append(out, b)
	}
	return out
}

func acks() ledger.Promise {
	return ledger.Promise{
		Text:   "a record whose confirm I saw survives the loss of any one broker",
		Start:  "the broker's confirm",
		End:    "the log, read to its end after recovery",
		Places: []string{"store"},
		Rules:  map[string]ledger.Rule{"unavailable": {Allowed: true}, "duplicate-store": {}},
	}
}

func proofs(missing string) []audit.Proof {
	out := []audit.Proof{
		{Name: "before the strike", Want: ">= 500 confirmed", Got: "9,204 confirmed", OK: true},
		{Name: "in flight at the strike", Want: ">= 1 sends", Got: "38 sends", OK: true},
		{Name: "during the fault", Want: ">= 200 confirmed by the cut node", Got: "412 confirmed by kafka-2", OK: true},
		{Name: "bite cut", Want: "packets dropped in both directions", Got: "1,833 packets dropped", OK: true},
		{Name: "after the heal", Want: ">= 500 confirmed", Got: "19,870 confirmed", OK: true},
		{Name: "final read", Want: "the end of every partition, counts equal to the broker's", Got: "37,412 of 37,412 records", OK: true},
		{Name: "checks", Want: "all ran", Got: "9 of 9", OK: true},
	}
	for i := range out {
		if out[i].Name == missing {
			out[i].OK, out[i].Got = false, "nothing"
		}
	}
	return out
}

func liveliness(rate float64, p50 time.Duration, gap time.Duration) audit.Liveness {
	return audit.Liveness{
		Before:     audit.Latency{Count: 9204, P50: ms(2.1), P99: ms(11), P999: ms(34), Max: ms(61)},
		During:     audit.Latency{Count: 412, P50: p50, P99: 4 * p50, P999: 5 * p50, Max: 6 * p50},
		After:      audit.Latency{Count: 19870, P50: ms(2.0), P99: ms(12), P999: ms(40), Max: ms(77)},
		LongestGap: gap, FirstSuccess: gap + ms(120), RatePerSecond: 1998.4,
		Series: series(rate, p50),
	}
}

func header(arm, role string, settings map[string]string, e *ledger.Expect) ledger.Header {
	all := map[string]string{"client linger.ms": "5", "topic replication.factor": "3", "topic min.insync.replicas": "2", "client delivery.timeout.ms": "30000"}
	maps.Copy(all, settings)
	return ledger.Header{
		Schema: 1, Run: "20260504-093000-7f3a", Suite: "kafka-acks", System: "kafka", Version: "4.2.0", Scenario: "leader-isolated", Arm: arm, Role: role,
		Window: "W3", Seed: 7, Promise: acks(), Expect: e, Settings: all, Timing: map[string]string{"replica.lag.time.max.ms": "3000"},
		Reproduce: "conform run --suite kafka-acks --scenario leader-isolated --seed 7 --version kafka:4.2.0",
	}
}

func lostStory(seq uint64, extra string) audit.Story {
	id := ledger.MessageID{Stream: 2, Seq: seq}
	line := func(at float64, place, text string) audit.StoryLine {
		return audit.StoryLine{At: int64(ms(at)), Since: ms(at), Place: place, Text: text}
	}
	return audit.Story{ID: id, Title: "confirmed by kafka-2 while it was cut off, gone after the heal" + extra, Lines: []audit.StoryLine{
		line(0, "sent", "handed to the client for acks-1-topic, partition 0 (producer-2, event 118204)"),
		line(1.9, "confirmed", "kafka-2 answered without an error: offset 9,311"),
		line(2.0, "claimed", "the application told its caller: sent"),
		line(3120, "fault", "cut healed: kafka-2 follows kafka-3 and cuts its log back to offset 9,204"),
		line(14210, "stored", "another record stands at the confirmed offset 9,311 (message 2/10102)"),
		line(14420, "verdict", "lost(confirmed)/broker: confirmed, and absent from the log read to its end"),
	}}
}

// isolated is a scenario that passes, with the usual timeline.
func isolated(runs int) harness.ScenarioResult {
	knob := &ledger.Expect{Anomaly: "lost", Attribution: "broker", Knob: "acks=1", Forces: []string{"enable.idempotence=false"}, Place: "store"}
	lost := audit.Finding{
		Anomaly: "lost", Qualifier: "confirmed", Attribution: "broker", Place: "store", Count: 412, Forbidden: true,
		Regions: map[audit.Region]int{audit.Middle: 412}, Window: "6.1 s to 8.0 s, between cut and the new leader",
		Sample:    []ledger.MessageID{{Stream: 2, Seq: 9311}, {Stream: 2, Seq: 9312}, {Stream: 2, Seq: 9313}},
		Witnesses: []string{"producer-2 frame 148: complete 2/9311 ok, partition 0 offset 9311", "reader frame 9: partition 0 read 0..37412, 2/9311 not in it"},
	}
	s := harness.ScenarioResult{
		Suite: "kafka-acks", Name: "leader-isolated", Window: "W3", Status: audit.Pass,
		Summary: "The partition's leader is cut from its peers and the controllers while clients still reach it, until another leads and 200 were sent to the cut one.",
		Guarded: "acks=all with min.insync.replicas=2: the cut leader cannot confirm alone.",
		LookFor: "kafka.server:type=ReplicaManager,name=UnderMinIsrPartitionCount and the log line \"Truncating partition … to offset\" on a broker that came back; clients: any producer with acks other than all.",
		Plan:    []string{"until >= 500 confirmed: node-isolated on leader", "until another than leader leads and >= 200 sent to leader since \"cut\": heal \"cut\"", "until all replicas in sync: go on"},
		Elapsed: 41200 * time.Millisecond,
		Arms: []harness.ArmSummary{
			{Name: "guarded", Role: "guarded", K: runs, N: runs, Low: math.Pow(0.025, 1/float64(runs)), High: 1},
			{Name: "acks-1", Role: "control", Knob: "acks=1", Forces: []string{"enable.idempotence=false"}, Expect: "lost/broker", K: runs, N: runs, Low: math.Pow(0.025, 1/float64(runs)), High: 1},
		},
	}
	for i := range runs {
		s.Repeats = append(s.Repeats, harness.Repeat{
			Index: i, Seed: 7 + uint64(i), Elapsed: 41200 * time.Millisecond, Status: audit.Pass, Targets: map[string][]string{"leader": {"kafka-2"}},
			Steps: []harness.StepResult{
				{Name: "cut", Words: "cut: until >= 500 confirmed: node-isolated on leader", Seen: "504 confirmed", At: 5700 * time.Millisecond, Took: 300 * time.Millisecond, Reached: true, Evidence: "1,833 packets dropped in both directions", Bit: true},
				{Name: "moved", Words: "moved: until another than leader leads: go on", Seen: "kafka-3 leads in epoch 4", At: 6 * time.Second, Took: 4 * time.Second, Reached: true},
				{Name: "mend", Words: `mend: until >= 200 sent to leader since "cut": heal "cut"`, Seen: "412 sent to kafka-2", At: 10 * time.Second, Took: 4 * time.Second, Reached: true},
				{Name: "whole", Words: "whole: until all replicas in sync: go on", Seen: "in sync: kafka-1, kafka-2, kafka-3", At: 14 * time.Second, Took: 500 * time.Millisecond, Reached: true},
			},
			Arms: []harness.ArmRun{
				{Name: "guarded", Role: "guarded", Folder: fmt.Sprintf("kafka-acks/leader-isolated/%d/guarded", i+1), Header: header("guarded", "guarded", map[string]string{"client acks": "all", "client idempotence": "true"}, nil), Verdict: audit.Verdict{
					Arm: audit.Held, Proofs: proofs(""), Liveness: liveliness(0, ms(640), 4100*time.Millisecond), Checks: map[string]int{"lost": 1},
					Totals: audit.Totals{Invoked: 37412, Confirmed: 37374, InDoubt: 38, Claimed: 37374, Stored: 37391, Recovered: 17},
				}},
				{Name: "acks-1", Role: "control", Folder: fmt.Sprintf("kafka-acks/leader-isolated/%d/acks-1", i+1), Header: header("acks-1", "control", map[string]string{"client acks": "1", "client idempotence": "false"}, knob), Verdict: audit.Verdict{
					Arm: audit.Reproduced, Findings: []audit.Finding{lost}, Proofs: proofs(""), Liveness: liveliness(210, ms(1.8), 900*time.Millisecond), Checks: map[string]int{"lost": 1},
					Totals:  audit.Totals{Invoked: 37830, Confirmed: 37824, InDoubt: 6, Claimed: 37824, Stored: 37418, Recovered: 6},
					Stories: []audit.Story{lostStory(9311, ""), lostStory(9312, ""), lostStory(9313, "")},
				}},
			},
		})
	}
	return s
}

// mixed has a scenario of every verdict, and hostile texts wherever a broker can put one.
func mixed() harness.Result {
	pass := isolated(1)

	broken := isolated(2)
	broken.Name, broken.Window, broken.Status = "response-lost", "W2", audit.Fail
	broken.Arms[0].K, broken.Arms[0].Low, broken.Arms[0].High = 1, 0.0126, 0.9874
	g := &broken.Repeats[1]
	g.Status = audit.Fail
	g.Arms[0].Verdict.Arm = audit.Broke
	g.Arms[0].Verdict.Findings = []audit.Finding{{
		Anomaly: "lost", Qualifier: "claimed", Attribution: "client-buffer", Place: "store", Count: 3, Forbidden: true,
		Regions: map[audit.Region]int{audit.Prefix: 1, audit.Suffix: 2}, Window: "9.9 s", Sample: []ledger.MessageID{{Stream: 2, Seq: 77}},
		Witnesses: []string{"producer-2 frame 3: key " + hostile},
	}}
	g.Arms[0].Verdict.Stories = []audit.Story{lostStory(77, " "+hostile)}

	open := isolated(1)
	open.Name, open.Status = "two-disks-lost", audit.Inconclusive
	open.Reasons = []string{"control acks-1 did not reproduce lost/broker", "guarded: no evidence of \"bite cut\""}
	open.Arms[0].K, open.Arms[0].N, open.Arms[1].K = 0, 0, 0
	open.Repeats[0].Status = audit.Inconclusive
	open.Repeats[0].Steps[0].Bit, open.Repeats[0].Steps[0].Evidence = false, "no packet was dropped"
	open.Repeats[0].Arms[0].Verdict.Arm = audit.ArmInconclusive
	open.Repeats[0].Arms[0].Verdict.Proofs = proofs("bite cut")
	open.Repeats[0].Arms[0].Verdict.Reasons = []string{"no evidence of \"bite cut\""}
	open.Repeats[0].Arms[1].Verdict.Arm = audit.Missed
	open.Repeats[0].Arms[1].Verdict.Findings, open.Repeats[0].Arms[1].Verdict.Stories = nil, nil

	ours := isolated(1)
	ours.Name, ours.Status, ours.Error, ours.Arms, ours.Repeats = "leader-killed", audit.Inconclusive, "start kafka-2: container exited with 137: "+hostile, nil, nil

	away := isolated(1)
	away.Name, away.Status, away.Reasons, away.Arms, away.Repeats = "min-insync", audit.NotApplicable, []string{"this cluster cannot lose a disk: not applicable"}, nil, nil

	seen := isolated(1)
	seen.Name, seen.Window, seen.Status = "lag-too-small", "", audit.Observed
	seen.Arms = []harness.ArmSummary{{Name: "lag-1000", Role: "observation", K: 1, N: 1, Low: 0.025, High: 1}}
	seen.Repeats[0].Arms = seen.Repeats[0].Arms[:1]
	seen.Repeats[0].Arms[0].Name, seen.Repeats[0].Arms[0].Role = "lag-1000", "observation"
	seen.Repeats[0].Status = audit.Observed

	return result(audit.Fail, pass, broken, open, ours, away, seen)
}

func passing() harness.Result { return result(audit.Pass, isolated(1)) }

func result(status audit.Status, scenarios ...harness.ScenarioResult) harness.Result {
	return harness.Result{
		RunID: "20260504-093000-7f3a", Seed: 7, Binary: "dev", Command: "conform run --suite kafka-acks --seed 7", Started: started, Ended: started.Add(6*time.Minute + 12*time.Second), Status: status,
		Suites: []harness.SuiteResult{{
			Name: "kafka-acks", Title: "A record whose confirm I saw survives the loss of any one broker.", System: "kafka", Version: "4.2.0", Promise: acks(),
			Status: status, Scenarios: scenarios, Elapsed: 6 * time.Minute,
		}},
		Clusters: []harness.ClusterInfo{{
			System: "kafka", Version: "4.2.0", Image: "localhost/conform-kafka:4.2.0-1f2e3d4c5b6a", Startup: 8900 * time.Millisecond,
			MemoryMiB: map[string]int{"kafka-1": 331, "kafka-2": 328, "kafka-3": 340}, Settings: map[string]string{"default.replication.factor": "3"},
			Timing: map[string]string{"replica.lag.time.max.ms": "3000", "broker.session.timeout.ms": "3000"}, RebuiltAfter: []string{"two-disks-lost: rebuilt"},
		}},
		Machine: map[string]string{"cores": "2", "memory": "24 GiB", "kernel": "6.1", "engine": "28.2.2"},
	}
}
