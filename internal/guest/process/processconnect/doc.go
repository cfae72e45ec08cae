// Package processconnect holds the Connect client and handler of the process
// service, generated from process.proto. It never holds hand-written code.
package processconnect
