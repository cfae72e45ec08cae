package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// machine is where the figures come from; without it they mean nothing.
type machine struct {
	os, kernel, cpu, suite string
	cores                  int
	memory                 int64
}

func readMachine() (machine, error) {
	m := machine{cores: runtime.NumCPU(), cpu: field("/proc/cpuinfo", "model name", ":")}
	m.os = strings.Trim(field("/etc/os-release", "PRETTY_NAME", "="), `"`)
	m.suite = strings.Trim(field("/etc/os-release", "VERSION_CODENAME", "="), `"`)
	if m.suite == "" {
		m.suite = "bookworm"
	}
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		return m, fmt.Errorf("cannot name the kernel: %w", err)
	}
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		m.kernel += string(rune(c))
	}
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("cannot size the machine: %w", err)
	}
	m.memory = int64(info.Totalram) * int64(info.Unit)
	return m, nil
}

func (m machine) String() string {
	return fmt.Sprintf("%s, Linux %s, %s, %d cores, %d GiB", m.os, m.kernel, m.cpu, m.cores, (m.memory+1<<29)>>30)
}

// load is the machine's load before a measurement: other work on it shows.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "?"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}

// field returns the value of the first line that starts with key.
func field(file, key, sep string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), sep); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
