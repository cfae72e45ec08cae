// Package process holds the messages of the process service, generated from
// process.proto. It never holds hand-written code.
package process
