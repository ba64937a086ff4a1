package podsource

import "testing"

func TestLastSourceDecides(t *testing.T) {
	called := 0
	a := Await("file", "api")
	a.Then(func() { called++ })
	done := func() bool {
		select {
		case <-a.All():
			return true
		default:
			return false
		}
	}
	for _, name := range []string{"other", "file", "file"} {
		if a.Delivered(name); called != 0 || done() || !a.Waits("api") {
			t.Errorf("all have delivered after %s", name)
		}
	}
	for range 2 {
		if a.Delivered("api"); called != 1 || !done() || a.Waits("api") || a.Waits("file") {
			t.Errorf("called %d times", called)
		}
	}
}
