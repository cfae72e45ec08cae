// Package caisson is the map of this module. A caisson is the sealed chamber
// in which people work on the bed of a river; this one is where code works
// that a model wrote and nobody trusts. The root holds no code, only the rules
// of who may import whom (deps_test.go).
//
// The packages, in the order in which a run travels:
//
//	cmd/caisson            the binary: child modes first, then the command line
//	internal/reexec        the child modes of the same binary
//	internal/cli           one file per command: flags, output, exit codes
//	internal/daemon        where everything is put together
//	api                    limits, results and error codes, as users see them
//	internal/policy        what a request may ask for; it only decides
//	internal/image         what a user names becomes one read-only EROFS file
//	internal/egress        the one dialer; refused addresses, and a record
//	internal/sandbox       the life of a sandbox: make, watch, say why it ended
//	internal/driver        the contract of an isolation level
//	  driver/gvisor        a kernel of its own for each sandbox, in user space
//	  driver/drivertest    the suite that every level must pass
//	internal/guest         the protocol with the program inside
//	  guest/attach         the jailed child that reads what the guest sends
//	  guest/program        that program, embedded
//	  guest/process        and guest/filesystem: generated messages
//	cmd/caisson-guest      the program itself, PID 1 of every sandbox
//	internal/export        the one writer of what a sandbox made
//	internal/workspace     a project directory as a sandbox left it, and apply
//	internal/host          cgroups, namespaces, mounts, filters, jails
//	internal/testenv       what tests need from a machine, and leak checks
//	tests/run              the run command from end to end
//	demo                   prints a result for people
//	bench                  measures against other tools
//
// Read docs/design.md for why it is so, docs/security.md for what it does and
// does not protect.
package caisson
