// The driver's stand-in: streams, events, captures and graphs.
#include <algorithm>
#include <thread>

#include "device.h"

using namespace lazynet::emulator;

namespace {

// Waiting for a stream that is being captured makes the capture worthless.
CUresult refuse_captured(Device& d, Stream& stream, const char* name) {
  stream.capture->invalid = true;
  return d.refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, std::string(name) + " of a stream that is being captured");
}

Event* event_of(Device& d, CUevent handle) {
  Event* event = d.events.find(handle);
  if (!event) d.refuse(CUDA_ERROR_INVALID_HANDLE, "no such event, or it has been destroyed");
  return event;
}

CUresult refuse_captured_event(Device& d, const char* name) {
  return d.refuse(CUDA_ERROR_CAPTURED_EVENT, std::string(name) + " of an event that was last recorded in a capture");
}

void join(Stream& stream, const Record& record) {
  if (!stream.capture) {
    stream.capture = record.capture;
    stream.capture->streams.push_back(&stream);
    stream.last.clear();
  }
  for (int node : record.nodes)
    if (std::find(stream.last.begin(), stream.last.end(), node) == stream.last.end()) stream.last.push_back(node);
}

CUresult wait_event(Device& d, Stream& stream, Event& event) {
  if (!event.record) return CUDA_SUCCESS;  // never recorded: nothing to wait for
  if (event.record->capture) {
    const bool going_on = std::find(d.captures.begin(), d.captures.end(), event.record->capture) != d.captures.end();
    if (!going_on) return refuse_captured_event(d, "cuStreamWaitEvent");
    if (stream.capture && stream.capture != event.record->capture)
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE, "cuStreamWaitEvent: stream and event belong to two captures");
    if (&stream == &d.queues.legacy())
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "cuStreamWaitEvent: the legacy stream cannot be captured");
    join(stream, *event.record);
    return CUDA_SUCCESS;
  }
  if (stream.capture) {
    stream.capture->invalid = true;
    return d.refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                    "cuStreamWaitEvent: a captured stream waits for what is not captured");
  }
  Command command;
  command.awaited = event.record;
  d.queues.add(stream, std::move(command));
  return CUDA_SUCCESS;
}

void end_capture(Device& d, const std::shared_ptr<Capture>& capture) {
  for (Stream* stream : capture->streams) {
    stream->capture = nullptr;
    stream->last.clear();
  }
  d.captures.erase(std::find(d.captures.begin(), d.captures.end(), capture));
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (!stream || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = d.streams.add(d.queues.create(flags != CU_STREAM_NON_BLOCKING));
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    Stream** found = d.streams.find(handle);
    if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuStreamDestroy: no such stream");
    Stream* stream = *found;
    if (stream->capture) {
      const auto capture = stream->capture;
      end_capture(d, capture);
    }
    d.streams.remove(handle);
    d.queues.destroy(*stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    CUresult code;
    Stream* stream = d.stream_of(handle, &code);
    if (!stream) return code;
    if (stream->capture) return refuse_captured(d, *stream, "cuStreamSynchronize");
    ++d.statistics.synchronizations;
    d.queues.finish(*stream);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    CUresult code;
    Stream* stream = d.stream_of(handle, &code);
    if (!stream) return code;
    Event* event = event_of(d, event_handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    return wait_event(d, *stream, *event);
  });
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (!event || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    *event = d.events.add({nullptr});
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent event) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (!event_of(d, event)) return CUDA_ERROR_INVALID_HANDLE;
    d.events.remove(event);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    CUresult code;
    Stream* stream = d.stream_of(handle, &code);
    if (!stream) return code;
    Event* event = event_of(d, event_handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    event->record = std::make_shared<Record>();
    if (stream->capture) {
      event->record->capture = stream->capture;
      event->record->nodes = stream->last;
      return CUDA_SUCCESS;
    }
    Command command;
    command.recorded = event->record;
    d.queues.add(*stream, std::move(command));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    Event* event = event_of(d, handle);
    if (!event) return CUDA_ERROR_INVALID_HANDLE;
    if (!event->record) return CUDA_SUCCESS;
    if (event->record->capture) return refuse_captured_event(d, "cuEventSynchronize");
    ++d.statistics.synchronizations;
    d.queues.finish(*event->record);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    CUresult code;
    Stream* stream = d.stream_of(handle, &code);
    if (!stream) return code;
    if (stream == &d.queues.legacy())
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                      "cuStreamBeginCapture: the legacy stream cannot be captured");
    if (stream->capture)
      return d.refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamBeginCapture: the stream is being captured");
    auto capture = std::make_shared<Capture>();
    capture->origin = stream;
    capture->streams = {stream};
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    stream->capture = capture;
    stream->last.clear();
    d.captures.push_back(capture);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    Stream** found = d.streams.find(handle);
    if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuStreamEndCapture: no such stream");
    Stream& stream = **found;
    if (!stream.capture) return d.refuse(CUDA_ERROR_ILLEGAL_STATE, "cuStreamEndCapture: the stream is not captured");
    if (stream.capture->origin != &stream)
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "cuStreamEndCapture: the capture began in another stream");
    if (stream.capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && stream.capture->thread != std::this_thread::get_id())
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                      "cuStreamEndCapture: the capture began in another thread");
    const std::shared_ptr<Capture> capture = stream.capture;
    const std::vector<int> last = stream.last;
    end_capture(d, capture);
    if (capture->invalid)
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                      "cuStreamEndCapture: an earlier error has made the capture invalid");
    if (!all_joined(capture->nodes, last))
      return d.refuse(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                      "cuStreamEndCapture: the stream does not wait for all that others have captured");
    *graph = d.graphs.add({std::make_shared<const std::vector<GraphNode>>(std::move(capture->nodes))});
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    if (!exec) return CUDA_ERROR_INVALID_VALUE;
    Graph* found = d.graphs.find(graph);
    if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuGraphInstantiate: no such graph");
    *exec = d.graph_execs.add(*found);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle) {
  return call(Needs::kWorking, [&](Device& d) -> CUresult {
    Graph* found = d.graph_execs.find(exec);
    if (!found) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuGraphLaunch: no such graph");
    CUresult code;
    Stream* stream = d.stream_of(handle, &code);
    if (!stream) return code;
    if (stream->capture)
      return d.refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphLaunch: the emulator captures no graphs within graphs");
    ++d.statistics.graph_launches;
    Command command;
    command.work = [&d, nodes = found->nodes] { return d.queues.run(*nodes); };
    d.queues.add(*stream, std::move(command));
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (!d.graph_execs.find(exec)) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuGraphExecDestroy: no such graph");
    d.graph_execs.remove(exec);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return call(Needs::kContext, [&](Device& d) -> CUresult {
    if (!d.graphs.find(graph)) return d.refuse(CUDA_ERROR_INVALID_HANDLE, "cuGraphDestroy: no such graph");
    d.graphs.remove(graph);
    return CUDA_SUCCESS;
  });
}
}
