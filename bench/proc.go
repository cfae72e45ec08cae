package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// descendants lists the processes below pid, itself first.
func descendants(pid int) []int {
	children := map[int][]int{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything; the parent is the second
		// field behind it.
		i := strings.LastIndexByte(string(b), ')')
		rest := strings.Fields(string(b)[i+1:])
		if i < 0 || len(rest) < 2 {
			continue
		}
		child, err1 := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		parent, err2 := strconv.Atoi(rest[1])
		if err1 == nil && err2 == nil {
			children[parent] = append(children[parent], child)
		}
	}
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}

// pss is the memory of processes with shared pages divided among those who
// share them. Without files it is what ends with the processes; the rest is
// our binary and images in the page cache, which all sandboxes share.
func pss(pids []int, withFiles bool) (sum int64) {
	names := []string{"Pss_Anon", "Pss_Shmem"}
	if withFiles {
		names = []string{"Pss"}
	}
	for _, pid := range pids {
		for _, name := range names {
			n, err := strconv.ParseInt(strings.TrimSuffix(field(fmt.Sprintf("/proc/%d/smaps_rollup", pid), name, ":"), " kB"), 10, 64)
			if err == nil {
				sum += n << 10
			}
		}
	}
	return sum
}

// switches counts how often the threads of a process went to sleep, which is
// how often they were awake.
func switches(pid int) (n int64) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	for _, f := range files {
		if x, err := strconv.ParseInt(field(f, "voluntary_ctxt_switches", ":"), 10, 64); err == nil {
			n += x
		}
	}
	return n
}

// cgroup returns the directory of the process's cgroup that counts memory.
func cgroup(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	unified := ""
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 {
			continue
		}
		if f[1] == "memory" {
			return "/sys/fs/cgroup/memory" + f[2]
		}
		if f[1] == "" {
			unified = "/sys/fs/cgroup" + f[2]
		}
	}
	return unified
}

// memoryStat reads one field of memory.stat; -1 when it is not there.
func memoryStat(dir, name string) int64 {
	b, err := os.ReadFile(dir + "/memory.stat")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(b)) {
		if k, value, _ := strings.Cut(strings.TrimSpace(line), " "); k == name {
			if n, err := strconv.ParseInt(value, 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}

// used is memory that cannot be given back by writing pages to files, cached
// the page cache of files, which the kernel takes back on demand. The fields
// have other names in v1 and v2, and "shmem" is in both.
func used(dir string) int64 {
	if rss := memoryStat(dir, "total_rss"); rss >= 0 {
		return rss + max(memoryStat(dir, "total_shmem"), 0)
	}
	return memoryStat(dir, "anon") + memoryStat(dir, "shmem")
}

func cached(dir string) int64 {
	if cache := memoryStat(dir, "total_cache"); cache >= 0 {
		return cache - max(memoryStat(dir, "total_shmem"), 0)
	}
	return memoryStat(dir, "file") - memoryStat(dir, "shmem")
}
