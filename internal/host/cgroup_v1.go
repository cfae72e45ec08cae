package host

import "strconv"

// cpuPeriod is the kernel's default bandwidth period, in microseconds. Shorter
// ones cost more timer interrupts than they smooth.
const cpuPeriod = 100_000

// settingsV1 is what the limits are in v1's control files, in writing order:
// memsw may not be below the memory limit.
func settingsV1(l Limits) (s []setting) {
	if l.MemoryMax > 0 {
		max := strconv.FormatInt(l.MemoryMax, 10)
		s = append(s,
			setting{"memory", "memory.limit_in_bytes", max, false},
			setting{"memory", "memory.memsw.limit_in_bytes", max, true},
			setting{"memory", "memory.swappiness", "0", true})
	}
	if l.Pids > 0 {
		s = append(s, setting{"pids", "pids.max", strconv.FormatInt(l.Pids, 10), false})
	}
	if l.CPUQuota > 0 {
		s = append(s,
			setting{"cpu", "cpu.cfs_period_us", strconv.Itoa(cpuPeriod), false},
			setting{"cpu", "cpu.cfs_quota_us", cpuQuota(l), false})
	}
	if l.CPUWeight > 0 {
		shares := max(2, l.CPUWeight*1024/100)
		s = append(s, setting{"cpu", "cpu.shares", strconv.Itoa(shares), false})
	}
	return s
}

func cpuQuota(l Limits) string { return strconv.Itoa(int(l.CPUQuota * cpuPeriod)) }
