package cri

import fp "wherry.dev/internal/failpoint"

// failpoint kills the process, as kill -9 would, if a test asked for this step.
func failpoint(step string) { fp.At(step) }
