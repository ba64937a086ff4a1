package cri

// runChild makes the test binary another program, when a test has started it as
// one; fault_test.go does.
func runChild() (code int, ok bool) { return 0, false }
