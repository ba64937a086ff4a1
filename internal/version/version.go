// Package version says which build this is. The linker sets the variables.
package version

// Version is Wherry's own version, such as v0.1.0-12-gabc1234.
var Version = "dev"
