package host

import "strconv"

// settingsV2 is what the limits are in v2's control files.
func settingsV2(l Limits) (s []setting) {
	if l.MemoryMax > 0 {
		s = append(s,
			setting{"memory", "memory.max", strconv.FormatInt(l.MemoryMax, 10), false},
			setting{"memory", "memory.swap.max", "0", true},
			// A sandbox kernel without one of its processes is of no use.
			setting{"memory", "memory.oom.group", "1", true})
	}
	if l.Pids > 0 {
		s = append(s, setting{"pids", "pids.max", strconv.FormatInt(l.Pids, 10), false})
	}
	if l.CPUQuota > 0 {
		s = append(s, setting{"cpu", "cpu.max", cpuQuota(l) + " " + strconv.Itoa(cpuPeriod), false})
	}
	if l.CPUWeight > 0 {
		s = append(s, setting{"cpu", "cpu.weight", strconv.Itoa(l.CPUWeight), false})
	}
	return s
}
