package suites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"conform/faults"
	"conform/fixtures"
	"conform/harness"
	"conform/harness/audit"
	"conform/harness/host"
	"conform/harness/ledger"
	"conform/harness/plan"
	"conform/harness/system"
	"conform/harness/system/postgres"
	"conform/harness/worker"
)

const (
	roleDoomed = "doomed-job"  // a relay that something kills, which is not the plan
	roleHung   = "hung-reader" // a consumer that takes deliveries and never ends the work on them
)

func init() {
	worker.Register(roleDoomed, func(ctx context.Context, s *worker.Session) error {
		time.AfterFunc(700*time.Millisecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) })
		return onMemory.jobRole()(ctx, s)
	})
	worker.Register(roleHung, func(ctx context.Context, s *worker.Session) error {
		c, err := onMemory.clients.OpenConsumer(ctx, s.Config.Client)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
		if err := s.Ready(ctx); err != nil {
			return err
		}
		ds, err := c.Poll(ctx)
		for _, d := range ds {
			h, _ := ledger.ParsePayload(d.Payload)
			s.Record(ledger.Event{
				Kind: ledger.Received, Consumer: s.Config.Consumer, At: worker.Now(), Stream: h.ID.Stream, Seq: h.ID.Seq, EventID: h.EventID,
				Pos: ledger.Position{Destination: s.Config.Destination, Partition: d.Partition, Offset: d.Offset}, Digest: ledger.Digest(d.Payload),
			})
		}
		<-s.Stopping()
		return err
	})
}

// connections sets how many connections the clients may have, -1 = any number, and ends those that they have.
func connections(limit int) harness.Action {
	return func(ctx context.Context, e harness.Env, _ plan.Step) (string, error) {
		db, err := database(e)
		if err != nil {
			return "", err
		}
		client, err := pgx.ParseConfig(db.DSN("any", false))
		if err != nil {
			return "", err
		}
		conn, err := pgx.Connect(ctx, db.DSN("operator", true))
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, fmt.Sprintf("ALTER ROLE %s CONNECTION LIMIT %d", pgx.Identifier{client.User}.Sanitize(), limit)); err != nil {
			return "", err
		}
		tag, err := conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", client.User)
		return fmt.Sprintf("limit %d, %d ended", limit, tag.RowsAffected()), err
	}
}

// squatter is PostgreSQL in which somebody has made the arm's schema already.
type squatter struct {
	postgres.System
	schema string
}

func (s squatter) Start(ctx context.Context, spec system.Spec) (system.Cluster, error) {
	c, err := s.System.Start(ctx, spec)
	if err == nil && s.schema != "" {
		err = c.(*postgres.Cluster).CreateSchema(ctx, s.schema)
	}
	return c, err
}

// badDay is what becomes of one chain whose day was bad.
type badDay struct {
	result harness.Result
	arm    harness.ArmRun
	err    error
}

// run runs one guarded arm of the outbox on PostgreSQL and the broker in memory. change makes its day bad.
func (d *badDay) run(t *testing.T, name string, change func(sc *harness.Scenario, run string) system.System) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a container: not with -short")
	}
	version := fixtures.Versions(postgres.Name)[0]
	images, err := host.Prepare(t.Context(), host.Options{Systems: []fixtures.Version{version}})
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("needs a container engine and an image of PostgreSQL: %v", err)
		}
		t.Skipf("needs a container engine and an image of PostgreSQL: %v", err)
	}
	sc := chained(harness.Scenario{
		Name: name,
		Arms: []harness.Arm{{
			Name: "guarded", Role: harness.Guarded, Producer: onMemory.orders(nil),
			Processes: []harness.Process{onMemory.relay("relay-1", nil), onMemory.reader("consumer-1", nil)},
		}},
		Steps: []plan.Step{{Name: "loaded", Until: []plan.State{{Kind: plan.Handled, N: seen}}}},
	})
	id := "bad" + time.Now().Format("150405.000")
	database := change(&sc, id)
	suite := outbox(onMemory)
	suite.Scenarios, suite.With = []harness.Scenario{sc}, []system.System{database}
	suite.Promise.Places = append(suite.Promise.Places, "liveness")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d.result, d.err = harness.Run(t.Context(), harness.Config{
		RunID: id, Suites: []harness.Suite{suite}, Seed: 1, Out: filepath.Join(t.TempDir(), "run"), Worker: []string{self, "worker"},
		Faults: faults.All(), Images: map[string]string{postgres.Name: images[version.String()].Ref},
	})
	if repeats := d.result.Suites[0].Scenarios[0].Repeats; len(repeats) > 0 && len(repeats[0].Arms) > 0 {
		d.arm = repeats[0].Arms[0]
	}
	t.Logf("%s: error %v; %s, reasons %q, findings %v", name, d.err, d.arm.Verdict.Arm, d.arm.Verdict.Reasons, d.findings())
	left, err := exec.CommandContext(t.Context(), "docker", "ps", "-aq", "--filter", "label=conform.run="+id).Output()
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %s (%v)", left, err)
	}
	for _, f := range d.arm.Verdict.Findings {
		if f.Anomaly == "lost" || f.Attribution == audit.Broker {
			t.Errorf("the broker is blamed: %s", f.Name())
		}
	}
}

func (d *badDay) findings() (names []string) {
	for _, f := range d.arm.Verdict.Findings {
		names = append(names, f.Name())
	}
	return names
}

// why is all that the run says about its end.
func (d *badDay) why() string {
	sc := d.result.Suites[0].Scenarios[0]
	return strings.Join(slices.Concat(sc.Reasons, d.arm.Verdict.Reasons, []string{sc.Error, fmt.Sprint(d.err)}), "\n")
}

func (d *badDay) isTheEnvironments(t *testing.T, cause string) {
	t.Helper()
	if !errors.Is(d.err, system.ErrEnvironment) || errors.Is(d.err, system.ErrUsage) || !strings.Contains(d.err.Error(), cause) {
		t.Errorf("want exit 4 and %q: %v", cause, d.err)
	}
	if len(d.findings()) > 0 && d.arm.Verdict.Arm != audit.ArmInconclusive {
		t.Errorf("%s, with %v", d.arm.Verdict.Arm, d.findings())
	}
}

func TestBadDaysOfTheDatabase(t *testing.T) {
	t.Run("dies", func(t *testing.T) {
		var d badDay
		d.run(t, "dies", func(sc *harness.Scenario, run string) system.System {
			sc.Actions = map[string]harness.Action{"die": func(ctx context.Context, _ harness.Env, _ plan.Step) (string, error) {
				names, err := exec.CommandContext(ctx, "docker", "ps", "--format", "{{.Names}}", "--filter", "label=conform.run="+run).Output()
				for _, name := range strings.Fields(string(names)) {
					if !strings.HasSuffix(name, "-pod") {
						err = errors.Join(err, exec.CommandContext(ctx, "docker", "kill", name).Run())
					}
				}
				return string(names), err
			}}
			sc.Steps = append(sc.Steps, plan.Step{Name: "died", Do: "die"}, plan.Step{Name: "more", Until: []plan.State{{Kind: plan.Handled, N: 10000}}})
			return postgres.System{}
		})
		d.isTheEnvironments(t, "postgres")
	})
	t.Run("schema exists", func(t *testing.T) {
		var d badDay
		d.run(t, "exists", func(sc *harness.Scenario, run string) system.System {
			return squatter{schema: fmt.Sprintf("conform_%08x", ledger.Tag(run, onMemory.suite("outbox"), sc.Name, "guarded", 0))}
		})
		d.isTheEnvironments(t, "exists")
	})
	t.Run("no connection is left, for a while", func(t *testing.T) {
		var d badDay
		d.run(t, "crowded", func(sc *harness.Scenario, _ string) system.System {
			sc.Actions = map[string]harness.Action{"crowd": connections(0), "leave": connections(-1)}
			sc.Steps = append(
				sc.Steps, plan.Step{Name: "crowded", Do: "crowd"},
				plan.Step{Name: "alone", Until: []plan.State{{Kind: plan.Elapsed, Hold: 2 * time.Second, Since: "crowded"}}, Do: "leave"},
				handledMore("alone"),
			)
			return postgres.System{}
		})
		// The arm is well; what it lacks is a fault that the plan names.
		if d.err != nil || len(d.findings()) > 0 || len(d.arm.Verdict.Reasons) != 1 || !strings.HasPrefix(d.arm.Verdict.Reasons[0], "fault: ") {
			t.Errorf("error %v, arm %s, findings %v: %s", d.err, d.arm.Verdict.Arm, d.findings(), d.why())
		}
	})
	t.Run("no connection is left", func(t *testing.T) {
		var d badDay
		d.run(t, "full", func(sc *harness.Scenario, _ string) system.System {
			sc.Actions = map[string]harness.Action{"crowd": connections(0)}
			sc.Steps = append(sc.Steps, plan.Step{Name: "crowded", Do: "crowd"})
			return postgres.System{}
		})
		if d.arm.Verdict.Arm == audit.Held || !slices.ContainsFunc(d.findings(), func(name string) bool { return strings.HasPrefix(name, audit.Stuck) }) {
			t.Errorf("error %v, arm %s: %s", d.err, d.arm.Verdict.Arm, d.why())
		}
	})
}

func TestBadDaysOfProcesses(t *testing.T) {
	t.Run("a relay is killed", func(t *testing.T) {
		var d badDay
		d.run(t, "relay-killed", func(sc *harness.Scenario, _ string) system.System {
			sc.Arms[0].Processes[0].Role = roleDoomed
			return postgres.System{}
		})
		if d.arm.Verdict.Arm != audit.ArmInconclusive || !strings.Contains(d.why(), "relay-1") {
			t.Errorf("error %v, arm %s: %s", d.err, d.arm.Verdict.Arm, d.why())
		}
	})
	for _, name := range []string{"relay-1", reconciler} {
		t.Run(name+" is killed by the plan, and restarted", func(t *testing.T) {
			var d badDay
			d.run(t, name+"-restarted", func(sc *harness.Scenario, _ string) system.System {
				job := onMemory.comparing("Reconcile")
				job.Manual = false
				sc.Arms[0].Processes = append(sc.Arms[0].Processes, job)
				sc.Steps = append(
					sc.Steps, plan.Step{Name: "killed", Do: harness.DoKillProcess, Process: name},
					plan.Step{Name: "back", Do: harness.DoStartProcess, Process: name}, handledMore("back"),
				)
				return postgres.System{}
			})
			if d.err != nil || d.arm.Verdict.Arm != audit.Held {
				t.Errorf("error %v, arm %s: %s", d.err, d.arm.Verdict.Arm, d.why())
			}
		})
	}
	t.Run("a consumer hangs", func(t *testing.T) {
		var d badDay
		d.run(t, "consumer-hangs", func(sc *harness.Scenario, _ string) system.System {
			sc.Arms[0].Processes[1].Role = roleHung
			sc.Steps = []plan.Step{{Name: "loaded", Until: []plan.State{{Kind: plan.Confirmed, N: seen}}}}
			return postgres.System{}
		})
		if !slices.ContainsFunc(d.findings(), func(name string) bool { return strings.HasPrefix(name, audit.Stuck) }) {
			t.Errorf("not called stuck: error %v, arm %s, findings %v: %s", d.err, d.arm.Verdict.Arm, d.findings(), d.why())
		}
	})
}
