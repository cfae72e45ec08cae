package run

import (
	"strings"
	"testing"
	"time"

	"caisson.dev/caisson/api"
)

// small are limits under which every test below is quick.
var small = api.Limits{Memory: 96 * api.MiB, Disk: 16 * api.MiB, Shm: 1 * api.MiB, Inodes: 500, Pids: 40, NoFile: 64, FileSize: 8 * api.MiB}

// eater is a perl program that takes memory until it is stopped.
const eater = `perl -e 'my @a; while (1) { push @a, "x" x 1048576 }'`

// The table of limits: each with the program that hits it, and what the
// program or its user sees.
func TestI5_EveryLimitHolds(t *testing.T) {
	for _, tc := range []struct {
		name    string
		command string
		limits  func(*api.Limits)
		exit    int
		code    string
		stdout  string // part of it
		events  string // part of events and reason
	}{
		{
			name: "memory", command: "exec " + eater, exit: 137, code: api.EndMemory,
			events: "memory limit 96 MiB: killed perl (pid ",
		},
		{
			name: "memory, the sandbox lives", command: eater + `; echo alive`, code: api.EndExited,
			stdout: "alive", events: "memory limit 96 MiB: killed perl (pid ",
		},
		{
			name:    "pids",
			command: `perl -e 'my @p; for (1..1000) { my $p = fork; if (!defined $p) { print "fork: $!\n"; last } if (!$p) { sleep 30; exit } push @p, $p } kill 9, @p; print scalar(@p), "\n"'; echo alive`,
			stdout:  "fork: Resource temporarily unavailable", code: api.EndExited,
		},
		{
			name: "forks that are tried again and again", code: api.EndExited,
			command: `(perl -e 'for (1..6) { fork } my $end = time + 2; while (time < $end) { fork }' 2>/dev/null); echo alive`, stdout: "alive",
		},
		{
			name: "fork bomb, the sandbox lives", code: api.EndExited,
			command: `perl -e 'for (1..200) { my $p = fork; exit if defined $p && !$p }' ; sleep 0.1; echo alive`, stdout: "alive",
		},
		{name: "disk", command: `head -c 6m /dev/zero > a; head -c 6m /dev/zero > b; head -c 6m /dev/zero > c; echo $?`, stdout: "1\n", code: api.EndExited},
		{name: "disk in /tmp", command: `for i in 1 2 3 4; do head -c 5m /dev/zero 2>&1 > /tmp/$i; done; true`, stdout: "No space left on device", code: api.EndExited},
		{name: "inodes", command: `perl -e 'for (1..1000) { open my $f, ">", "/tmp/$_" or do { print "$!\n"; last } }'`, stdout: "No space left on device", code: api.EndExited},
		{name: "shm", command: `head -c 2m /dev/zero > /dev/shm/a 2>/tmp/e; cat /tmp/e`, stdout: "No space left on device", code: api.EndExited},
		{name: "open files", command: `perl -e 'my @a; for (1..100) { open my $f, "<", "/dev/null" or do { print "$!\n"; last }; push @a, $f }'`, stdout: "Too many open files", code: api.EndExited},
		{name: "file size", command: `(head -c 9m /dev/zero > /tmp/a) 2>/tmp/e; echo $?; cat /tmp/e; stat -c %s /tmp/a`, stdout: "8388608", code: api.EndExited},
		{name: "wall clock", command: "sleep 100", limits: func(l *api.Limits) { l.Wall = time.Second }, exit: api.ExitLimit, code: api.EndWall, events: "wall clock limit 1s"},
		{name: "cpu time", command: "while :; do :; done", limits: func(l *api.Limits) { l.CPUTime = time.Second }, exit: api.ExitLimit, code: api.EndCPU, events: "cpu time limit 1s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := sh(tc.command)
			req.Limits = small
			if tc.limits != nil {
				tc.limits(&req.Limits)
			}
			o := run(t, req)
			said := strings.Join(append(o.Events, o.Reason), "\n")
			if o.ExitCode != tc.exit || o.Code != tc.code {
				t.Errorf("exit %d %s, want %d %s", o.ExitCode, o.Code, tc.exit, tc.code)
			}
			if !strings.Contains(o.out, tc.stdout) || !strings.Contains(said, tc.events) {
				t.Errorf("stdout %q, stderr %q, said %q; want %q and %q", o.out, o.err, said, tc.stdout, tc.events)
			}
		})
	}
}

func TestI5_OutputFloodIsCutAndCounted(t *testing.T) {
	req := sh("head -c 64m /dev/zero; head -c 1m /dev/zero >&2; echo end")
	req.Limits.Output = 2 * api.MiB
	o := run(t, req)
	if len(o.out) != 2*api.MiB || o.Stdout.Bytes != 64*api.MiB+4 || !o.Stdout.Truncated {
		t.Errorf("kept %d bytes, counted %+v", len(o.out), *o.Stdout)
	}
	if len(o.err) != 1*api.MiB || o.Stderr.Truncated {
		t.Errorf("stderr: kept %d bytes, counted %+v", len(o.err), *o.Stderr)
	}
}

// The quota is an upper bound that the kernel holds, so that noise on the
// machine cannot fail this.
func TestI5_CPUQuotaHolds(t *testing.T) {
	req := sh("while :; do :; done")
	req.Limits.CPU = 0.25
	req.Limits.Wall = 3 * time.Second
	o := run(t, req)
	if most := 3*time.Second/4 + 2*time.Second; o.Usage.CPU > most {
		t.Errorf("used %v of processor time in 3s at a quarter of a core", o.Usage.CPU)
	}
}

func TestI2_LimitsThatCannotHoldAreRefused(t *testing.T) {
	for _, tc := range []struct {
		l    api.Limits
		says string
	}{
		{api.Limits{Memory: 1}, "below the floor 32 MiB"},
		{api.Limits{Pids: 2}, "below the floor 8"},
		{api.Limits{Disk: 4096}, "below the floor 1 MiB"},
		{api.Limits{CPU: -1}, "below the floor 0.05"},
		{api.Limits{Wall: -time.Second}, "below the floor"},
		{api.Limits{Memory: 64 * api.MiB, Disk: 64 * api.MiB}, "together are more than memory"},
		{api.Limits{Memory: 1 << 60}, "above the ceiling"},
	} {
		req := sh("true")
		req.Limits = tc.l
		_, err := tryRun(t, t.Context(), req, "")
		if err == nil || !strings.Contains(err.Error(), tc.says) || api.Hint(err) == "" {
			t.Errorf("%+v: %v (hint %q), want %q", tc.l, err, api.Hint(err), tc.says)
		}
	}
}
