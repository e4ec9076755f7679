// Calls of the other functions that were kept, made again for other rows.

#include <cstdint>

namespace {

struct Call {
    void (*function)(const void*);
    int64_t* num_rows;  // where its arguments begin
};

struct Recording {
    int64_t num_rows, num_calls;
    const Call* calls;
};

}  // namespace

extern "C" void draftahead_replay(const void* arguments) {
    const Recording& recording = *static_cast<const Recording*>(arguments);
    for (const Call* call = recording.calls; call != recording.calls + recording.num_calls; ++call) {
        *call->num_rows = recording.num_rows;
        call->function(call->num_rows);
    }
}
