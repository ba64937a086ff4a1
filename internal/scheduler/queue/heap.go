package queue

// podHeap is a container/heap of items that know their index.
type podHeap struct {
	items []*item
	less  func(a, b *item) bool
}

func (h *podHeap) Len() int           { return len(h.items) }
func (h *podHeap) Less(i, j int) bool { return h.less(h.items[i], h.items[j]) }
func (h *podHeap) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].index, h.items[j].index = i, j
}

// Push implements heap.Interface.
func (h *podHeap) Push(x any) {
	it, ok := x.(*item)
	if !ok {
		return
	}
	it.index = len(h.items)
	h.items = append(h.items, it)
}

// Pop implements heap.Interface.
func (h *podHeap) Pop() any {
	last := len(h.items) - 1
	it := h.items[last]
	h.items[last] = nil
	h.items = h.items[:last]
	return it
}
