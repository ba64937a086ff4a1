package stream

import (
	"os"
	"testing"

	"wherry.dev/test/leaks"
)

func TestMain(m *testing.M) { os.Exit(leaks.Watch(m).Run()) }
