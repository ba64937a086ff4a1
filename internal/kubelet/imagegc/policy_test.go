package imagegc

import (
	"slices"
	"testing"
	"time"

	"wherry.dev/internal/disk"
)

func TestExcess(t *testing.T) {
	for _, c := range []struct {
		name      string
		high, low int32
		room      disk.Room
		want      uint64
		over      bool
	}{
		{"room enough", 85, 80, disk.Room{Free: 200, Total: 1000}, 0, false},
		{"just below", 85, 80, disk.Room{Free: 160, Total: 1000}, 0, false},
		{"at the threshold", 85, 80, disk.Room{Free: 150, Total: 1000}, 50, true},
		{"full", 85, 80, disk.Room{Total: 1000}, 200, true},
		{"never", 100, 80, disk.Room{Total: 1000}, 0, false},
		{"always", 1, 0, disk.Room{Free: 900, Total: 1000}, 100, true},
		{"no capacity", 85, 80, disk.Room{}, 0, false},
		{"more free than there is", 85, 80, disk.Room{Free: 2000, Total: 1000}, 0, false},
	} {
		got, over := Policy{High: c.high, Low: c.low}.Excess(c.room)
		if got != c.want || over != c.over {
			t.Errorf("%s: %d, %v; want %d, %v", c.name, got, over, c.want, c.over)
		}
	}
}

func TestWhichImagesGo(t *testing.T) {
	began := time.Now()
	at := func(m int) time.Time { return began.Add(time.Duration(m) * time.Minute) }
	images := []Image{
		{ID: "pinned", Pinned: true},
		{ID: "used", Used: true, First: at(1), Last: at(60)},
		{ID: "new", First: at(59)},
		{ID: "late", First: at(1), Last: at(50)},
		{ID: "early", First: at(2), Last: at(10)},
		{ID: "never", First: at(3)},
		{ID: "always there"},
	}
	ids := func(list []Image) (out []string) {
		for _, i := range list {
			out = append(out, i.ID)
		}
		return out
	}
	p := Policy{MinAge: 2 * time.Minute}
	if got, want := ids(p.Unused(images, at(60))), []string{"always there", "never", "early", "late"}; !slices.Equal(got, want) {
		t.Errorf("unused: %q, want %q", got, want)
	}
	if got := p.Old(images, began, at(60)); got != nil {
		t.Errorf("old, without a limit: %+v", got)
	}
	for _, c := range []struct {
		limit time.Duration
		want  []string
		next  time.Duration
	}{
		{70 * time.Minute, nil, 10*time.Minute + time.Second},
		{58 * time.Minute, []string{"always there"}, time.Second},
		{45 * time.Minute, []string{"always there", "never", "early"}, time.Second},
		{5 * time.Minute, []string{"always there", "never", "early", "late"}, time.Second},
	} {
		p.MaxAge = c.limit
		if got := ids(p.Old(images, began, at(60))); !slices.Equal(got, c.want) {
			t.Errorf("unused for %v: %q, want %q", c.limit, got, c.want)
		}
		if got := p.NextOld(images, began, at(60)); got != c.next {
			t.Errorf("unused for %v: the next look after %v, want %v", c.limit, got, c.next)
		}
	}
}
