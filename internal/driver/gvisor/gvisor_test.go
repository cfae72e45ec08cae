package gvisor

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/driver/drivertest"
	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/program"
	"caisson.dev/caisson/internal/image"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

const holdMode = "test-hold"

func init() { reexec.Register(holdMode, holdMain) }

func TestMain(m *testing.M) {
	reexec.Dispatch()
	testenv.Main(m)
}

func testSpec(skeleton, id string) driver.Spec {
	config, err := guest.Config{
		Token: "test", Hostname: "test", Image: "/image", DiskBytes: 64 << 20, DiskInodes: 1000, ShmBytes: 1 << 20,
		Pids: 64, NoFile: 256, FileSize: 1 << 20, User: guest.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"},
	}.Encode()
	if err != nil {
		panic(err)
	}
	return driver.Spec{
		ID: id, Skeleton: skeleton, Host: &driver.HostImage{}, GuestConfig: config, Attached: true,
		Limits: driver.Limits{Memory: 256 << 20, MemoryHard: 320 << 20, Pids: 224, CPU: 1, CPUWeight: 100},
		MapUID: 1000, MapGID: 1000,
	}
}

func testSkeleton(t testing.TB) string {
	t.Helper()
	b, digest, err := program.Binary()
	testenv.NeedGuest(t, err)
	path, err := image.Skeleton(t.TempDir(), b, digest, driver.MaxMounts)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDriver(t *testing.T) {
	skeleton := testSkeleton(t)
	run := t.TempDir()
	drivertest.Run(t, drivertest.Subject{
		Driver: &Driver{RunDir: run},
		Spec:   func(id string) driver.Spec { return testSpec(skeleton, id) },
		Port:   guest.Port,
		Hold: func(t *testing.T, id string) *os.Process {
			return startHold(t, holdRequest{RunDir: run, Skeleton: skeleton, ID: id})
		},
	})
}

type holdRequest struct{ RunDir, Skeleton, ID string }

// holdMain is a process that makes an attached sandbox and waits to be killed.
func holdMain() int {
	var req holdRequest
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return 1
	}
	d := &Driver{RunDir: req.RunDir}
	if _, err := d.Create(context.Background(), testSpec(req.Skeleton, req.ID)); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	time.Sleep(time.Minute)
	return 0
}

func startHold(t *testing.T, req holdRequest) *os.Process {
	t.Helper()
	cmd := reexec.Command(holdMode)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(in).Encode(req); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the maker said %q, %v", line, err)
	}
	return cmd.Process
}
