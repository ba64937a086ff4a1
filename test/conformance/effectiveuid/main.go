// Effectiveuid prints who it runs as; run with the set-user-ID bit, that shows whether the bit had
// an effect.
package main

import (
	"fmt"
	"os"
)

func main() { fmt.Printf("Effective uid: %d\n", os.Geteuid()) }
