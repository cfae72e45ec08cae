package host

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Machines that we have seen, as the two files that the kernel shows.
var machines = map[string]struct {
	mounts, self string
	root         bool
	files        map[string]string // below the machine's root
	layout       string
	want         []string // key base vacate
	wantProc     string   // of group "x" in the memory or v2 hierarchy
	err          bool
}{
	"hybrid, own memory group": {
		mounts: `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw`,
		self: "9:name=systemd:/\n4:memory:/some/where\n1:cpu:/\n0::/\n", root: true,
		layout: "hybrid", want: []string{"cpu / false", "memory / false", " / false"}, wantProc: "/caisson/x",
	},
	"v1 with combined controllers": {
		mounts: `33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`,
		self: "3:memory:/user.slice\n2:cpu,cpuacct:/user.slice\n", root: true,
		layout: "v1", want: []string{"cpu,cpuacct / false", "memory / false"}, wantProc: "/caisson/x",
	},
	"v1 container without cgroup namespace": {
		mounts: `35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`,
		self:   "3:memory:/docker/abc\n", root: true,
		layout: "v1", want: []string{"memory / false"}, wantProc: "/docker/abc/caisson/x",
	},
	"v1, not root": {
		mounts: `35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`,
		self:   "3:memory:/user/1000\n",
		layout: "v1", want: []string{"memory /user/1000 false"}, wantProc: "/user/1000/caisson/x",
	},
	"v2, root in a session": {
		mounts: `30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate`,
		self:   "0::/user.slice/user-0.slice/session-3.scope\n", root: true,
		files:  map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n"},
		layout: "v2", want: []string{" / false"}, wantProc: "/caisson/x",
	},
	"v2, root of a container": {
		mounts: `30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw`,
		self:   "0::/\n", root: true,
		files: map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
			"sys/fs/cgroup/cgroup.type": "domain\n"},
		layout: "v2", want: []string{" / true"}, wantProc: "/caisson/x",
	},
	"v2, user session with delegation": {
		mounts: `30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`,
		self:   "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n",
		files: map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
			"sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope/cgroup.subtree_control": ""},
		layout: "v2", want: []string{" /user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope true"},
		wantProc: "/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope/caisson/x",
	},
	"v2, ordinary session": {
		mounts: `30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`,
		self:   "0::/user.slice/user-1000.slice/session-1.scope\n", err: true,
	},
	"mount point with a space": {
		mounts: `35 31 0:32 / /mnt/c\040g rw - cgroup cgroup rw,memory`,
		self:   "3:memory:/\n", root: true,
		layout: "v1", want: []string{"memory / false"}, wantProc: "/caisson/x",
	},
	"a mount that does not hold us": {
		mounts: `35 31 0:32 /other /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory`,
		self:   "3:memory:/mine\n", root: true, err: true,
	},
	"our group is outside of what we see": {
		mounts: `30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`,
		self:   "0::/../other\n", root: true, err: true,
	},
	"no cgroups": {mounts: "22 27 0:21 / /proc rw - proc proc rw", self: "", root: true, err: true},
}

func TestDetectCgroupsOnOtherMachines(t *testing.T) {
	for name, m := range machines {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, "proc/self/mountinfo", m.mounts+"\n")
			write(t, root, "proc/self/cgroup", m.self)
			for file, text := range m.files {
				write(t, root, file, text)
			}
			c, err := detectCgroups(root, m.root)
			if m.err {
				if !errors.Is(err, ErrNotSupported) {
					t.Fatalf("got %+v, %v; want not supported", c, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, h := range c.all {
				got = append(got, h.key()+" "+h.base+map[bool]string{true: " true", false: " false"}[h.vacate])
			}
			if diff := cmp.Diff(m.want, got); diff != "" {
				t.Errorf("hierarchies (-want +got):\n%s", diff)
			}
			if c.Layout() != m.layout {
				t.Errorf("layout %q, want %q", c.Layout(), m.layout)
			}
			for _, h := range c.all {
				if h.v2 || h.has("memory") {
					if p := h.procPath("x"); p != m.wantProc {
						t.Errorf("a process would show in %q, want %q", p, m.wantProc)
					}
					break
				}
			}
		})
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestI5_LimitsInControlFiles(t *testing.T) {
	l := Limits{MemoryMax: 1 << 30, Pids: 100, CPUQuota: 1.5, CPUWeight: 50}
	show := func(all []setting) (lines []string) {
		for _, s := range all {
			lines = append(lines, s.file+"="+s.value)
		}
		return lines
	}
	if diff := cmp.Diff([]string{
		"memory.limit_in_bytes=1073741824", "memory.memsw.limit_in_bytes=1073741824", "memory.swappiness=0",
		"pids.max=100", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000", "cpu.shares=512",
	}, show(settingsV1(l))); diff != "" {
		t.Errorf("v1 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"memory.max=1073741824", "memory.swap.max=0", "memory.oom.group=1",
		"pids.max=100", "cpu.max=150000 100000", "cpu.weight=50",
	}, show(settingsV2(l))); diff != "" {
		t.Errorf("v2 (-want +got):\n%s", diff)
	}
	if n := len(settingsV1(Limits{})) + len(settingsV2(Limits{})); n != 0 {
		t.Errorf("no limits make %d settings", n)
	}
}

func TestI5_MissingControllerIsNamed(t *testing.T) {
	c := &Cgroups{all: []hierarchy{{controllers: []string{"cpu"}}}}
	_, err := c.Create("x", Limits{MemoryMax: 1, Pids: 1, CPUQuota: 1})
	if !errors.Is(err, ErrNotSupported) || !strings.Contains(err.Error(), "memory, pids (have: cpu)") {
		t.Errorf("got %v", err)
	}
}

// The kernel's v2 files, as plain files: only their formats are under test.
func TestStatisticsOfV2(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"memory.stat":    "anon 4096\nfile 20480\nkernel 1\nshmem 8192\nfile_mapped 7\n",
		"memory.current": "32768\n", "memory.peak": "65536\n",
		"memory.events": "low 0\nhigh 3\nmax 2\noom 1\noom_kill 5\noom_group_kill 1\n",
		"cpu.stat":      "usage_usec 1500\nuser_usec 1000\n",
		"pids.current":  "12\n", "pids.events": "max 7\n",
	} {
		write(t, dir, name, text)
	}
	g := &Cgroup{Name: "x", dirs: []groupDir{{hierarchy{v2: true, controllers: []string{"cpu", "memory", "pids"}}, dir}}}
	defer g.Close()
	mem, err := g.Memory()
	if diff := cmp.Diff(MemoryUsage{Anon: 4096, Shmem: 8192, File: 12288, Total: 32768, Peak: 65536}, mem); diff != "" || err != nil {
		t.Errorf("memory: %v (-want +got):\n%s", err, diff)
	}
	for name, test := range map[string]struct {
		read func() (int64, error)
		want int64
	}{
		"oom kills":   {g.OOMKills, 5},
		"pids":        {g.PidsCurrent, 12},
		"pids denied": {g.PidsDenied, 7},
		"cpu":         {func() (int64, error) { d, err := g.CPU(); return d.Microseconds(), err }, 1500},
	} {
		if got, err := test.read(); got != test.want || err != nil {
			t.Errorf("%s: %d, %v; want %d", name, got, err, test.want)
		}
	}
	os.Remove(filepath.Join(dir, "memory.peak"))
	g.Close()
	if mem, err := g.Memory(); err != nil || mem.Peak != 0 {
		t.Errorf("without memory.peak: %+v, %v", mem, err)
	}
}

func TestFieldReadsWholeKeys(t *testing.T) {
	text := []byte("total_rss_huge 1\nrss 2\ntotal_rss 3\nlast 4")
	for key, want := range map[string]int64{"rss": 2, "total_rss": 3, "last": 4, "total": 0, "": 0, "none": 0} {
		if got := field(text, key); got != want {
			t.Errorf("%q is %d, want %d", key, got, want)
		}
	}
}
